"""Options of the data source: names, checks, and the snapshots that they select.

Options have one row each: for checks, messages and a table in docs/spark.md, which this command
writes:

    python -m keytide.spark.option_rules
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Flag, auto
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

from keytide.base.dataclass import dataclass, replace
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


def _place(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _first(text: str) -> int | str:
    if not text.isdecimal() and text != "latest":
        raise ValueError("the number of a snapshot, or 'latest'")
    return _place(text)


MOMENT = ValueType("ISO timestamp in UTC, or epoch milliseconds", _place, ("2026-01-31",))
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
    lines = []
    for title, options in SECTIONS.items():
        lines.append(f"**{title}**\n")
        lines.append("| Option | Aliases | For | Values | Meaning |")
        lines.append("|---|---|---|---|---|")
        for option in options:
            also = ", ".join(f"`{name}`" for name in option.aliases)
            uses = ", ".join(word for use, word in _WORDS.items() if use in option.uses)
            uses = "all" if option.uses == _READS | _WRITES else uses
            kind = option.type.name
            lines.append(f"| `{option.key}` | {also} | {uses} | {kind} | {option.meaning} |")
        lines.append("")
    return "\n".join(lines)


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
            if option is None:
                if key.lower() not in _OF_SPARK:
                    rest[key.lower()] = text
                continue
            try:
                value = option.type.parse(text)
            except ValueError as error:
                raise InvalidError(f"option {key!r} is {text!r}; expected {error}") from None
            given = OptionValue(option, _SPELLINGS[key.lower()], value)
            known = found.setdefault(option.key, given)
            if known.value != value:
                raise InvalidError(
                    f"options {known.name!r} and {given.name!r} are the same option with different "
                    f"values, {known.value!r} and {value!r}; give only one of them"
                )
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
                f"table {table}: this {_USE_TEXTS[uses[0]]}, which does not support "
                f"{' and '.join(wrong)}; remove that"
            )
        for what, text in _EFFECT_TEXTS.items():
            if what is Effect.START and Use.SCAN in uses:
                continue  # for a scan, the options of a stream select the snapshot
            names = [repr(each.name) for each in self.by_key.values() if what in each.option.effect]
            if len(names) > 1:
                raise InvalidError(
                    f"table {table}: {' and '.join(names)} each say {text}; give only one of them"
                )


def _check_unknown(rest: Mapping[str, str], path: str) -> None:
    goes_to_store = takes_options(path)
    for name in rest:
        # Known options with a similar spelling or a similar name in other formats.
        spelled, cutoff = name.replace("_", "-"), 0.8 if goes_to_store else 0.6
        near = difflib.get_close_matches(spelled, _SPELLINGS, cutoff=cutoff)
        meant = [_LIKE[name]] if name in _LIKE else [_SPELLINGS[each] for each in near]
        if goes_to_store and not meant:
            continue
        way = f"did you mean {' or '.join(map(repr, meant))}?" if meant else f"options: {_KNOWN}."
        raise InvalidError(
            f"format 'keytide' has no option {name!r}; {way} Storage options are only for tables "
            "in an object store"
        )


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
    given = _one_of(options, *_STARTS)
    if given is None:
        return None
    key, value = given.option.key, given.value
    if key in _BETWEEN:
        value = _both(given, table.name)[0]
    if key in ("startingVersion", keys.SCAN_SNAPSHOT_ID):  # the changes include the snapshot itself
        return start_of(table, value if value == "latest" else max(value - 1, 0))
    if key == keys.INCREMENTAL_BETWEEN:
        is_id = isinstance(value, int)
        return Start(value) if is_id else Start.at(table.metadata.tag(value))
    if key == "start":
        is_tag = isinstance(value, str) and value not in ("full", "latest")
        if is_tag and table.metadata.has_tag(value):
            return Start.at(table.metadata.tag(value))
        return start_of(table, value)
    moment = epoch_ms(value, table.name, given.name)
    if key not in ("as-of", BETWEEN_TIMES):  # they include what was committed at that very moment
        moment -= 1
    return start_of(table, None, moment)


def end_of_changes(options: OptionValues, table: StoredTable) -> Place | None:
    """The snapshot or tag at which changes end, None if options do not say. Raises likewise."""
    given = _one_of(options, "end", "endingTimestamp", *_BETWEEN)
    if given is None:
        return None
    key = given.option.key
    place: Place = _both(given, table.name)[1] if key in _BETWEEN else given.value
    if key in ("endingTimestamp", BETWEEN_TIMES):
        return table.metadata.snapshot_as_of(epoch_ms(place, table.name, given.name)).id
    return place


def mode_of(options: OptionValues, table: StoredTable) -> str:
    """The mode of the changes, as in `Table.changes`."""
    mode: str = options.value("mode") or "diff"
    if mode != "auto":
        return mode
    producer = table.view(table.schema).options.changelog_producer
    return "delta" if producer == "none" else "changelog"


# -- values and modes ------------------------------------------------------------------------------


_BETWEEN = (keys.INCREMENTAL_BETWEEN, BETWEEN_TIMES)
_STARTS = (
    "startingVersion", keys.SCAN_SNAPSHOT_ID, "startingTimestamp", keys.SCAN_TIMESTAMP_MILLIS,
    keys.SCAN_TIMESTAMP, "as-of", "start", *_BETWEEN,
)  # fmt: skip


def _both(given: OptionValue, table: str) -> tuple[Place, Place]:
    places = [text.strip() for text in given.value.split(",")]
    if len(places) != 2 or not all(places):
        raise InvalidError(
            f"table {table}: {given.name!r} is {given.value!r}; expected two values separated by "
            "a comma, such as '1,3'"
        )
    return _place(places[0]), _place(places[1])


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
        places = dict.fromkeys((*_STARTS, *NAME_A_SNAPSHOT))
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
