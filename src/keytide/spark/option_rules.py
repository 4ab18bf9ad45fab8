"""Options of the data source: names, checks, and the snapshots that they select.

Options have one row each: for checks, messages and a table in docs/spark.md, which this command
writes:

    python -m keytide.spark.option_rules
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

from keytide.base.text import epoch_ms
from keytide.changes.follower import Start, start_of
from keytide.errors import InvalidError, UnsupportedError
from keytide.options import keys
from keytide.options.values import BOOLEAN, COLUMNS, SIZE, TEXT, ValueType, choice, integer
from keytide.snapshot.stored_table import StoredTable
from keytide.store import takes_options

# -- the options -----------------------------------------------------------------------------------


STREAM = "keytide-stream"
"""The option that marks a stream. `register` makes Spark set it."""

SCAN_MODE, BETWEEN_TIMES = keys.SCAN_MODE, keys.INCREMENTAL_BETWEEN_TIMESTAMP
COLUMNS_READ = "columns"
PARTITIONS, WHERE_REPLACED = "partitionOverwriteMode", "replaceWhere"
COMMIT_USER, COMMIT_IDENTIFIER = "commit-user", "commit-identifier"
MERGE_SCHEMA, NEW_SCHEMA = "merge-schema", "overwriteSchema"


class Use(Flag):
    """A use of the data source."""

    SCAN = auto()
    CHANGES = auto()
    STREAM = auto()
    APPEND = auto()
    OVERWRITE = auto()
    SINK = auto()

    @property
    def description(self) -> str:
        """The description for messages."""
        return _USE_TEXTS[self]


_USE_TEXTS = {
    Use.SCAN: "reads one snapshot",
    Use.CHANGES: "reads changes between two snapshots",
    Use.STREAM: "is a stream of changes",
    Use.APPEND: "appends",
    Use.OVERWRITE: "overwrites",
    Use.SINK: "is a streaming write",
}

_OF_CHANGES = Use.CHANGES | Use.STREAM
_READS = Use.SCAN | _OF_CHANGES
_WRITES = Use.APPEND | Use.OVERWRITE | Use.SINK


class Effect(Flag):
    """What an option determines.

    Two options that determine the same thing contradict each other.
    """

    NOTHING = 0
    SNAPSHOT = auto()
    START = auto()
    END = auto()
    REPLACED = auto()

    @property
    def description(self) -> str:
        """The description for messages. REQUIRES: a single flag."""
        return _EFFECT_TEXTS[self]


_EFFECT_TEXTS = {
    Effect.SNAPSHOT: "which snapshot is read",
    Effect.START: "where changes start",
    Effect.END: "where changes end",
    Effect.REPLACED: "what is replaced",
}


@dataclass(frozen=True)
class SourceOption:
    """One option. Its name is case-insensitive.

    `like` lists names that are not accepted, but that users of other formats may try.
    """

    key: str
    type: ValueType
    meaning: str
    uses: Use
    effect: Effect = Effect.NOTHING
    aliases: tuple[str, ...] = ()
    like: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All accepted names."""
        return (self.key, *self.aliases)


def _moment(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _place(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _first(text: str) -> int | str:
    if not text.isdecimal() and text != "latest":
        raise ValueError("the number of a snapshot, or 'latest'")
    return _place(text)


MOMENT = ValueType("ISO timestamp in UTC, or epoch milliseconds", _moment, ("2026-01-31",))
PLACE = ValueType("snapshot or tag", _place, ("3",))
FIRST = ValueType("snapshot", _first, ("3",))
_CACHE_SIZE = replace(SIZE, parse=str)  # parsed together with its folder
_MILLIS = integer(0, 2**63 - 1)
_SNAPSHOT = integer(1, 2**63 - 1)

_MODES = choice("diff", "delta", "changelog", "auto")
_SCAN_MODES = choice(
    "default", "latest-full", "full", "latest", "from-snapshot", "from-snapshot-full",
    "from-timestamp", "incremental", "latest-delta", "compacted-full", "from-creation-timestamp",
    "from-file-creation-time",
)  # fmt: skip

_TABLE = (
    SourceOption(keys.BRANCH, TEXT, "The branch to read or write.", _READS | _WRITES),
    SourceOption("cache", TEXT, "Folder on the local disk of each executor for a cache of the "
                 "table's files, for tables in an object store.", _READS | _WRITES),
    SourceOption("cache-bytes", _CACHE_SIZE, "Maximum size of this cache.", _READS | _WRITES),
)  # fmt: skip

_SCANS = (
    SourceOption(COLUMNS_READ, COLUMNS, "Columns to read, comma-separated. Spark does not tell a "
                 "Python data source which columns a query needs.", _READS, like=("select",
                 "projection")),
    SourceOption("where", TEXT, "SQL condition on the rows to read.", Use.SCAN,
                 like=("filter", "predicate")),
    SourceOption("snapshot-id", _SNAPSHOT, "The snapshot to read.", Use.SCAN, Effect.SNAPSHOT,
                 ("versionAsOf",), ("version",)),
    SourceOption("tag", TEXT, "The tag to read.", Use.SCAN, Effect.SNAPSHOT, (keys.SCAN_TAG_NAME,)),
    SourceOption("as-of", MOMENT, "Read the snapshot that was the latest at this time. A stream "
                 "starts after it.", Use.SCAN | Use.STREAM, Effect.SNAPSHOT | Effect.START,
                 ("timestampAsOf", "as-of-timestamp"), ("timestamp",)),
    SourceOption(keys.SCAN_VERSION, PLACE, "The snapshot or tag to read.", Use.SCAN,
                 Effect.SNAPSHOT),
    SourceOption(keys.SCAN_SNAPSHOT_ID, _SNAPSHOT, "The snapshot to read. A stream starts with "
                 "its changes.", Use.SCAN | Use.STREAM, Effect.SNAPSHOT | Effect.START),
    SourceOption(keys.SCAN_TIMESTAMP_MILLIS, _MILLIS, "Read the table as of this time. A stream "
                 "starts with the first commit at or after it.", Use.SCAN | Use.STREAM,
                 Effect.SNAPSHOT | Effect.START),
    SourceOption(keys.SCAN_TIMESTAMP, MOMENT, "The same.", Use.SCAN | Use.STREAM,
                 Effect.SNAPSHOT | Effect.START),
    SourceOption(SCAN_MODE, _SCAN_MODES, "Paimon's name for where a read starts. `latest-full` "
                 "and `full`: all rows. `latest` in a stream: only new changes. The others need "
                 f"a second option, such as `from-snapshot` with `{keys.SCAN_SNAPSHOT_ID}`. The "
                 "last four are refused.", _READS),
    SourceOption("skip-upsert", BOOLEAN, "Return all stored rows of a table with a key index.",
                 Use.SCAN, aliases=(keys.SCAN_SKIP_UPSERT,)),
    SourceOption("skip-upsert-delete", BOOLEAN, "Return the last row of each key of a table with "
                 "a key index, including deletes.", Use.SCAN,
                 aliases=(keys.SCAN_SKIP_UPSERT_DELETE,)),
)  # fmt: skip

_CHANGES = (
    SourceOption("readChangeFeed", BOOLEAN, "Return changes, with the row kind in the first "
                 "column `_row_kind`. `false`: a stream returns only new rows.", _OF_CHANGES,
                 aliases=("readChangeData", "read.changelog"),
                 like=("ignorechanges", "ignoredeletes", "skipchangecommits")),
    SourceOption("startingVersion", FIRST, "The first snapshot whose changes are returned, or "
                 "`latest` in a stream.", _OF_CHANGES, Effect.START),
    SourceOption("startingTimestamp", MOMENT, "Like `startingVersion`, by time: the first commit "
                 "at or after it.",
                 _OF_CHANGES, Effect.START, ("stream-from-timestamp",)),
    SourceOption("start", PLACE, "Return the changes after this snapshot; 0 starts at the first "
                 "one. A stream also accepts `latest`, or `full` for all rows first.", _OF_CHANGES,
                 Effect.START, ("start-snapshot-id",), ("startingoffsets",)),
    SourceOption("end", PLACE, "The last snapshot whose changes are returned. Default: the "
                 "latest.", Use.CHANGES, Effect.END, ("endingVersion", "end-snapshot-id")),
    SourceOption("endingTimestamp", MOMENT, "Like `end`, by time.", Use.CHANGES, Effect.END),
    SourceOption(keys.INCREMENTAL_BETWEEN, TEXT, "Start and end as `start,end`: snapshots or "
                 "tags.",
                 Use.CHANGES, Effect.START | Effect.END),
    SourceOption(BETWEEN_TIMES, TEXT, "Start and end as times, `start,end`: commits after the "
                 "first time, up to the second.", Use.CHANGES, Effect.START | Effect.END),
    SourceOption("mode", _MODES, "How changes are found. `diff` (default): compare the "
                 "snapshots. `delta`: rows as they were written. `changelog`: the stored "
                 "changelog. `auto`: the stored changelog if there is one, otherwise rows as "
                 "they were written.", _OF_CHANGES,
                 aliases=(keys.INCREMENTAL_BETWEEN_SCAN_MODE,)),
    SourceOption("max-rows-per-trigger", integer(1, 2**63 - 1), "Maximum number of rows in a "
                 "micro-batch. A batch ends at a commit and contains at least one commit. "
                 "Requires Spark 4.2.", Use.STREAM,
                 aliases=("streaming-max-rows-per-micro-batch", "read.stream.maxRowsPerTrigger"),
                 like=("maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger")),
    SourceOption("consumer", TEXT, "Name of a consumer. It prevents snapshots that the stream "
                 "has not read from expiring.", Use.STREAM, aliases=(keys.CONSUMER_ID,)),
)  # fmt: skip

_WRITING = (
    SourceOption(PARTITIONS, choice("static", "dynamic"), "What mode `overwrite` replaces. "
                 "`static` (default): all rows. `dynamic`: only the partitions of the new rows.",
                 Use.OVERWRITE, Effect.REPLACED, like=("partitionoverwrite", "overwrite-mode")),
    SourceOption(WHERE_REPLACED, TEXT, "SQL condition on partition columns that selects the "
                 "partitions that mode `overwrite` replaces. Rows of other partitions are "
                 "refused.", Use.OVERWRITE,
                 Effect.REPLACED),
    SourceOption(MERGE_SCHEMA, BOOLEAN, "Add columns and widen types to fit the rows, like "
                 "`merge_schema` of `Table.write`.", _WRITES, aliases=("mergeSchema",)),
    SourceOption(NEW_SCHEMA, BOOLEAN, "Only `false` is supported: an overwrite keeps the columns "
                 "of the table. Use ALTER TABLE to change them.", Use.APPEND | Use.OVERWRITE),
    SourceOption(COMMIT_USER, TEXT, "Together with `commit-identifier`: repeating the same "
                 "append has no effect.", Use.APPEND, aliases=("txnAppId",)),
    SourceOption(COMMIT_IDENTIFIER, integer(0, 2**63 - 1), "Number of the write, like "
                 "`commit_identifier` of `Table.write`.", Use.APPEND,
                 aliases=("txnVersion",)),
)  # fmt: skip

SECTIONS: dict[str, tuple[SourceOption, ...]] = {
    "The table": _TABLE,
    "Rows of a snapshot": _SCANS,
    "Changes": _CHANGES,
    "Writes": _WRITING,
}
"""The rows, by subject."""

_WORDS = {
    Use.SCAN: "read", Use.CHANGES: "read of changes", Use.STREAM: "readStream",
    Use.APPEND: "append", Use.OVERWRITE: "overwrite", Use.SINK: "writeStream",
}  # fmt: skip


def page() -> str:
    """The options as tables in Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for title, options in SECTIONS.items():
        yield f"**{title}**\n"
        yield "| Option | Aliases | For | Values | Meaning |"
        yield "|---|---|---|---|---|"
        for option in options:
            also = ", ".join(f"`{name}`" for name in option.aliases)
            uses = "all" if option.uses == _READS | _WRITES else _use_text(option.uses)
            yield f"| `{option.key}` | {also} | {uses} | {option.type.name} | {option.meaning} |"
        yield ""


def _use_text(uses: Use) -> str:
    return ", ".join(word for use, word in _WORDS.items() if use in uses)


if __name__ == "__main__":
    print(page())


# -- parsed options --------------------------------------------------------------------------------


_ROWS = [option for options in SECTIONS.values() for option in options]
_BY_NAME = {name.lower(): option for option in _ROWS for name in option.names}
_SPELLINGS = {name.lower(): name for option in _ROWS for name in option.names}
_LIKE = {name: option.key for option in _ROWS for name in option.like}

_OF_SPARK = ("path", "checkpointlocation", "queryname", "outputmode")


@dataclass(frozen=True)
class OptionValue:
    """One option with its typed value. `name` is the spelling that the user gave."""

    option: SourceOption
    name: str
    value: Any


@dataclass(frozen=True)
class OptionValues:
    """The options of one use of the data source, by their keys."""

    by_key: dict[str, OptionValue]

    @classmethod
    def parse(cls, path: str, options: Mapping[str, str]) -> tuple[OptionValues, dict[str, str]]:
        """Separate Keytide's options from those for the store of the path.

        Raises `InvalidError` for an unknown name, a value that does not parse, and two spellings of
        the same option with different values.
        """
        found: dict[str, OptionValue] = {}
        rest: dict[str, str] = {}
        for key, text in options.items():
            option = _BY_NAME.get(key.lower())
            if option is not None:
                _add(OptionValue(option, _SPELLINGS[key.lower()], _value(option, key, text)), found)
            elif key.lower() not in _OF_SPARK:
                rest[key.lower()] = text
        _check_unknown(rest, path)
        return cls(found), rest

    def __contains__(self, key: str) -> bool:
        return key in self.by_key

    def value(self, key: str) -> Any:
        """The value of an option by its key, None if it is not given."""
        given = self.by_key.get(key)
        return None if given is None else given.value

    def check(self, table: str, *uses: Use) -> None:
        """Raise `InvalidError` for options that fit none of the uses, and for contradictions.

        The message refers to the first use.
        """
        fitting = reduce(or_, uses)
        wrong = [repr(each.name) for each in self.by_key.values() if not each.option.uses & fitting]
        if wrong:
            raise InvalidError(
                f"table {table}: this {uses[0].description}, which does not support "
                f"{' and '.join(wrong)}; remove that"
            )
        for what in (Effect.SNAPSHOT, Effect.START, Effect.END, Effect.REPLACED):
            self._check_once(table, what, uses)

    def _check_once(self, table: str, what: Effect, uses: tuple[Use, ...]) -> None:
        if what is Effect.START and Use.SCAN in uses:
            return  # for a scan, the options of a stream select the snapshot
        names = [repr(each.name) for each in self.by_key.values() if what in each.option.effect]
        if len(names) > 1:
            raise InvalidError(
                f"table {table}: {' and '.join(names)} each say {what.description}; "
                "give only one of them"
            )


def _add(given: OptionValue, found: dict[str, OptionValue]) -> None:
    known = found.setdefault(given.option.key, given)
    if known.value != given.value:
        raise InvalidError(
            f"options {known.name!r} and {given.name!r} are the same option with different "
            f"values, {known.value!r} and {given.value!r}; give only one of them"
        )


def _value(option: SourceOption, name: str, text: str) -> Any:
    try:
        return option.type.parse(text)
    except ValueError as error:
        raise InvalidError(f"option {name!r} is {text!r}; expected {error}") from None


def _check_unknown(rest: Mapping[str, str], path: str) -> None:
    goes_to_store = takes_options(path)
    for name in rest:
        meant = _near(name, 0.8 if goes_to_store else 0.6)
        if goes_to_store and not meant:
            continue
        way = f"did you mean {' or '.join(map(repr, meant))}?" if meant else f"options: {_KNOWN}."
        raise InvalidError(
            f"format 'keytide' has no option {name!r}; {way} Storage options are only for tables "
            "in an object store"
        )


def _near(name: str, cutoff: float) -> list[str]:
    """Known options with a similar spelling or a similar name in other formats."""
    if name in _LIKE:
        return [_LIKE[name]]
    near = difflib.get_close_matches(name.replace("_", "-"), _SPELLINGS, cutoff=cutoff)
    return [_SPELLINGS[each] for each in near]


_KNOWN = ", ".join(repr(option.key) for option in _ROWS)


# -- options that select snapshots -----------------------------------------------------------------


Place: TypeAlias = "int | str"

_TIMES = ("as-of", keys.SCAN_TIMESTAMP_MILLIS, keys.SCAN_TIMESTAMP)
NAME_A_SNAPSHOT = ("snapshot-id", "tag", keys.SCAN_SNAPSHOT_ID, keys.SCAN_VERSION, *_TIMES)
"""The options that select the snapshot of a scan."""


def snapshot_named(options: OptionValues, table: StoredTable) -> dict[str, Any]:
    """The snapshot of a scan as an argument of `scan_table`, empty for the latest.

    Raises `InvalidError` and `UnsupportedError` for a `scan.mode` that does not fit.
    """
    _check_scan_mode(options, table.name)
    given = _one_of(options, *NAME_A_SNAPSHOT)
    if given is None:
        return {}
    if given.option.key in _TIMES:
        return {"as_of": epoch_ms(given.value, table.name, given.name)}
    if given.option.key == keys.SCAN_VERSION:
        # Other engines can create tags that consist of digits. As in these engines, a tag takes
        # precedence over an id.
        is_id = isinstance(given.value, int) and not table.metadata.has_tag(str(given.value))
        return {"snapshot_id": given.value} if is_id else {"tag": str(given.value)}
    return {"tag" if given.option.key == "tag" else "snapshot_id": given.value}


def start_of_changes(options: OptionValues, table: StoredTable) -> Start | None:
    """Where changes begin according to the options, None if they do not say.

    Raises `NotFoundError` when that place does not exist, `InvalidError` for an invalid place, and
    as `snapshot_named`.
    """
    mode = _check_scan_mode(options, table.name)
    if mode in _BEGIN_STREAMS:
        return start_of(table, _BEGIN_STREAMS[mode])
    if mode == "from-snapshot-full":
        raise UnsupportedError(
            f"table {table.name}: '{SCAN_MODE}' = {mode!r} is not supported in a stream, which "
            "cannot start with the rows of an older snapshot; start with those of the latest one "
            "('latest-full'), or with the changes of a snapshot ('from-snapshot')"
        )
    for key, begin in _BEGIN.items():
        if key in options:
            return begin(table, options.by_key[key])
    return None


def end_of_changes(options: OptionValues, table: StoredTable) -> Place | None:
    """The snapshot or tag at which changes end, None if options do not say. Raises likewise."""
    for key, end in _ENDS.items():
        if key in options:
            return end(table, options.by_key[key])
    return None


def mode_of(options: OptionValues, table: StoredTable) -> str:
    """The mode of the changes, as in `Table.changes`."""
    mode: str = options.value("mode") or "diff"
    if mode != "auto":
        return mode
    producer = table.view(table.schema).options.changelog_producer
    return "delta" if producer == "none" else "changelog"


# -- the start of changes --------------------------------------------------------------------------


def _with_snapshot(table: StoredTable, given: OptionValue) -> Start:
    """The changes include the snapshot itself."""
    if given.value == "latest":
        return start_of(table, "latest")
    return start_of(table, max(given.value - 1, 0))


def _since(table: StoredTable, given: OptionValue) -> Start:
    """The changes include what was committed at that very moment."""
    return start_of(table, None, epoch_ms(given.value, table.name, given.name) - 1)


def _after(table: StoredTable, given: OptionValue) -> Start:
    return start_of(table, None, epoch_ms(given.value, table.name, given.name))


def _start(table: StoredTable, given: OptionValue) -> Start:
    is_tag = isinstance(given.value, str) and given.value not in ("full", "latest")
    if is_tag and table.metadata.has_tag(given.value):
        return Start.at(table.metadata.tag(given.value))
    return start_of(table, given.value)


def _between(table: StoredTable, given: OptionValue) -> Start:
    start = _span_place(_both(given, table.name)[0])
    return Start(start) if isinstance(start, int) else Start.at(table.metadata.tag(start))


def _between_times(table: StoredTable, given: OptionValue) -> Start:
    moment = epoch_ms(_span_place(_both(given, table.name)[0]), table.name, given.name)
    return start_of(table, None, moment)


_BEGIN: Mapping[str, Callable[[StoredTable, OptionValue], Start]] = {
    "startingVersion": _with_snapshot,
    keys.SCAN_SNAPSHOT_ID: _with_snapshot,
    "startingTimestamp": _since,
    keys.SCAN_TIMESTAMP_MILLIS: _since,
    keys.SCAN_TIMESTAMP: _since,
    "as-of": _after,
    "start": _start,
    keys.INCREMENTAL_BETWEEN: _between,
    BETWEEN_TIMES: _between_times,
}


# -- the end of changes ----------------------------------------------------------------------------


def _end(table: StoredTable, given: OptionValue) -> Place:
    place: Place = given.value
    return place


def _end_at(table: StoredTable, given: OptionValue) -> Place:
    return _newest_at(table, given.value, given.name)


def _end_between(table: StoredTable, given: OptionValue) -> Place:
    return _span_place(_both(given, table.name)[1])


def _end_between_times(table: StoredTable, given: OptionValue) -> Place:
    return _newest_at(table, _span_place(_both(given, table.name)[1]), given.name)


_ENDS: Mapping[str, Callable[[StoredTable, OptionValue], Place]] = {
    "end": _end,
    "endingTimestamp": _end_at,
    keys.INCREMENTAL_BETWEEN: _end_between,
    BETWEEN_TIMES: _end_between_times,
}


# -- values and modes ------------------------------------------------------------------------------


def _both(given: OptionValue, table: str) -> tuple[str, str]:
    places = [text.strip() for text in given.value.split(",")]
    if len(places) != 2 or not all(places):
        raise InvalidError(
            f"table {table}: {given.name!r} is {given.value!r}; expected two values separated by "
            "a comma, such as '1,3'"
        )
    return places[0], places[1]


def _span_place(text: str) -> Place:
    return int(text) if text.isdecimal() else text


def _newest_at(table: StoredTable, moment: Place, name: str) -> int:
    return table.metadata.snapshot_as_of(epoch_ms(moment, table.name, name)).id


def _one_of(options: OptionValues, *known: str) -> OptionValue | None:
    return next((options.by_key[key] for key in known if key in options), None)


_BEGIN_STREAMS = {"latest-full": "full", "full": "full", "latest": "latest"}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "from-snapshot": (keys.SCAN_SNAPSHOT_ID, keys.SCAN_VERSION, "tag", "snapshot-id"),
    "from-snapshot-full": (keys.SCAN_SNAPSHOT_ID, keys.SCAN_VERSION, "tag", "snapshot-id"),
    "from-timestamp": (keys.SCAN_TIMESTAMP_MILLIS, keys.SCAN_TIMESTAMP, "as-of"),
    "incremental": (keys.INCREMENTAL_BETWEEN, BETWEEN_TIMES),
}


def _check_scan_mode(options: OptionValues, table: str) -> str:
    """The scan mode, if it agrees with the other options."""
    mode: str = options.value(SCAN_MODE) or "default"
    if mode in ("default", "latest-full", "full", "latest"):
        places = dict.fromkeys((*_BEGIN, *NAME_A_SNAPSHOT))
        others = [options.by_key[key].name for key in places if key in options]
        if mode != "default" and others:
            raise InvalidError(
                f"table {table}: '{SCAN_MODE}' is {mode!r}, but {', '.join(map(repr, others))} "
                "selects another start; give only one of them"
            )
    elif mode not in _NEEDED:
        raise UnsupportedError(
            f"table {table}: '{SCAN_MODE}' = {mode!r} is not supported; expected one of "
            f"{', '.join(map(repr, (*_BEGIN_STREAMS, *_NEEDED)))}"
        )
    elif not any(key in options for key in _NEEDED[mode]):
        raise InvalidError(f"table {table}: '{SCAN_MODE}' = {mode!r} requires {_NEEDED[mode][0]!r}")
    return mode
