"""The options of the data source, one a row: for checks, messages and a table of docs/spark.md.

python -m keytide.spark.option_table
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Flag, auto

from keytide.options import keys
from keytide.options.value_types import (
    BOOLEAN,
    COLUMNS,
    SIZE,
    TEXT,
    ValueType,
    choice,
    integer,
)

__all__ = [
    "BETWEEN_TIMES",
    "COLUMNS_READ",
    "COMMIT_IDENTIFIER",
    "COMMIT_USER",
    "MERGE_SCHEMA",
    "NEW_SCHEMA",
    "PARTITIONS",
    "SCAN_MODE",
    "SECTIONS",
    "STREAM",
    "WHERE_REPLACED",
    "Says",
    "SourceOption",
    "Use",
    "page",
]

STREAM = "keytide-stream"
"""The option that tells a stream; `register` has Spark set it."""

SCAN_MODE, BETWEEN_TIMES = keys.SCAN_MODE, keys.INCREMENTAL_BETWEEN_TIMESTAMP
COLUMNS_READ = "columns"
PARTITIONS, WHERE_REPLACED = "partitionOverwriteMode", "replaceWhere"
COMMIT_USER, COMMIT_IDENTIFIER = "commit-user", "commit-identifier"
MERGE_SCHEMA, NEW_SCHEMA = "merge-schema", "overwriteSchema"


class Use(Flag):
    """What the data source is used for."""

    SCAN = auto()
    CHANGES = auto()
    STREAM = auto()
    APPEND = auto()
    OVERWRITE = auto()
    SINK = auto()

    @property
    def told(self) -> str:
        """For messages."""
        return _TOLD[self]


_TOLD = {
    Use.SCAN: "reads one snapshot",
    Use.CHANGES: "reads changes between two snapshots",
    Use.STREAM: "is a stream of changes",
    Use.APPEND: "appends",
    Use.OVERWRITE: "overwrites",
    Use.SINK: "is a stream that writes",
}

_OF_CHANGES = Use.CHANGES | Use.STREAM
_READS = Use.SCAN | _OF_CHANGES
_WRITES = Use.APPEND | Use.OVERWRITE | Use.SINK


class Says(Flag):
    """What options settle. Two of them that settle the same contradict each other."""

    NOTHING = 0
    SNAPSHOT = auto()
    START = auto()
    END = auto()
    REPLACED = auto()

    @property
    def told(self) -> str:
        """For messages. REQUIRES: it is one of them."""
        return _SETTLED[self]


_SETTLED = {
    Says.SNAPSHOT: "which snapshot is read",
    Says.START: "where changes begin",
    Says.END: "where changes end",
    Says.REPLACED: "what is replaced",
}


@dataclass(frozen=True)
class SourceOption:
    """One option; letter case does not count.

    `like` are names that it is not known by, but that its users may be looking for.
    """

    key: str
    type: ValueType
    meaning: str
    uses: Use
    says: Says = Says.NOTHING
    aliases: tuple[str, ...] = ()
    like: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that it is known by."""
        return (self.key, *self.aliases)


def _moment(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _place(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _first(text: str) -> int | str:
    if not text.isdecimal() and text != "latest":
        raise ValueError("the number of a snapshot, or 'latest'")
    return _place(text)


MOMENT = ValueType("an ISO time in UTC, or epoch milliseconds", _moment, ("2026-01-31",))
PLACE = ValueType("a snapshot or a tag", _place, ("3",))
FIRST = ValueType("a snapshot", _first, ("3",))
_CACHE_SIZE = replace(SIZE, parse=str)  # parsed with the folder that it is for
_MILLIS = integer(0, 2**63 - 1)
_SNAPSHOT = integer(1, 2**63 - 1)

_MODES = choice("diff", "delta", "changelog", "auto")
_SCAN_MODES = choice(
    "default", "latest-full", "full", "latest", "from-snapshot", "from-snapshot-full",
    "from-timestamp", "incremental", "latest-delta", "compacted-full", "from-creation-timestamp",
    "from-file-creation-time",
)  # fmt: skip

_TABLE = (
    SourceOption(keys.BRANCH, TEXT, "The branch that is read or written.", _READS | _WRITES),
    SourceOption("cache", TEXT, "The folder on each executor's disk for copies of the files of a "
                 "table in an object store.", _READS | _WRITES),
    SourceOption("cache-bytes", _CACHE_SIZE, "The most that these take.", _READS | _WRITES),
)  # fmt: skip

_SCANS = (
    SourceOption(COLUMNS_READ, COLUMNS, "The columns that are read, with commas between: Spark "
                 "does not tell which ones a query needs.", _READS, like=("select", "projection")),
    SourceOption("where", TEXT, "A condition in SQL for the rows that are read.", Use.SCAN,
                 like=("filter", "predicate")),
    SourceOption("snapshot-id", _SNAPSHOT, "The snapshot to read.", Use.SCAN, Says.SNAPSHOT,
                 ("versionAsOf",), ("version",)),
    SourceOption("tag", TEXT, "The tag to read.", Use.SCAN, Says.SNAPSHOT, (keys.SCAN_TAG_NAME,)),
    SourceOption("as-of", MOMENT, "Read the snapshot that was newest at this time; a stream begins "
                 "behind it.", Use.SCAN | Use.STREAM, Says.SNAPSHOT | Says.START,
                 ("timestampAsOf", "as-of-timestamp"), ("timestamp",)),
    SourceOption(keys.SCAN_VERSION, PLACE, "The snapshot or tag to read.", Use.SCAN, Says.SNAPSHOT),
    SourceOption(keys.SCAN_SNAPSHOT_ID, _SNAPSHOT, "The snapshot to read; a stream begins with "
                 "its changes.", Use.SCAN | Use.STREAM, Says.SNAPSHOT | Says.START),
    SourceOption(keys.SCAN_TIMESTAMP_MILLIS, _MILLIS, "Read as of this time; a stream begins "
                 "with what was committed then or later.", Use.SCAN | Use.STREAM,
                 Says.SNAPSHOT | Says.START),
    SourceOption(keys.SCAN_TIMESTAMP, MOMENT, "The same.", Use.SCAN | Use.STREAM,
                 Says.SNAPSHOT | Says.START),
    SourceOption(SCAN_MODE, _SCAN_MODES, "Paimon's word for where a read begins: `latest-full` "
                 "and `full` with all rows, `latest` in a stream with none, the others as the "
                 "option says that goes with them, such as `from-snapshot` with "
                 f"`{keys.SCAN_SNAPSHOT_ID}`. The last four are refused.", _READS),
    SourceOption("skip-upsert", BOOLEAN, "Show all stored rows of a table with an index of keys.",
                 Use.SCAN, aliases=(keys.SCAN_SKIP_UPSERT,)),
    SourceOption("skip-upsert-delete", BOOLEAN, "Show the last row of each of its keys, that of a "
                 "delete too.", Use.SCAN, aliases=(keys.SCAN_SKIP_UPSERT_DELETE,)),
)  # fmt: skip

_CHANGES = (
    SourceOption("readChangeFeed", BOOLEAN, "Emit changes, with their kind in the first column "
                 "`_row_kind`; `false` has a stream emit new rows alone.", _OF_CHANGES,
                 aliases=("readChangeData", "read.changelog"),
                 like=("ignorechanges", "ignoredeletes", "skipchangecommits")),
    SourceOption("startingVersion", FIRST, "The first snapshot whose changes are emitted, or "
                 "`latest` in a stream.", _OF_CHANGES, Says.START),
    SourceOption("startingTimestamp", MOMENT, "The same by time: what was committed then or later.",
                 _OF_CHANGES, Says.START, ("stream-from-timestamp",)),
    SourceOption("start", PLACE, "The snapshot after which changes are emitted, 0 for the first "
                 "one; in a stream also `latest`, or `full` for all rows first.", _OF_CHANGES,
                 Says.START, ("start-snapshot-id",), ("startingoffsets",)),
    SourceOption("end", PLACE, "The last snapshot whose changes are emitted; the newest, when left "
                 "out.", Use.CHANGES, Says.END, ("endingVersion", "end-snapshot-id")),
    SourceOption("endingTimestamp", MOMENT, "The same by time.", Use.CHANGES, Says.END),
    SourceOption(keys.INCREMENTAL_BETWEEN, TEXT, "Both, as `start,end`: snapshots or tags.",
                 Use.CHANGES, Says.START | Says.END),
    SourceOption(BETWEEN_TIMES, TEXT, "Both by times, as `start,end`: what was "
                 "committed after the one, up to the other.", Use.CHANGES, Says.START | Says.END),
    SourceOption("mode", _MODES, "How changes are found: `diff` compares (left out), `delta` emits "
                 "rows as they were written, `changelog` the stored changelog, `auto` this where "
                 "there is one, else rows as written.", _OF_CHANGES,
                 aliases=(keys.INCREMENTAL_BETWEEN_SCAN_MODE,)),
    SourceOption("max-rows-per-trigger", integer(1, 2**63 - 1), "Ends a micro-batch at a commit, "
                 "before there are more rows written, but for one commit at least; needs Spark "
                 "4.2.", Use.STREAM,
                 aliases=("streaming-max-rows-per-micro-batch", "read.stream.maxRowsPerTrigger"),
                 like=("maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger")),
    SourceOption("consumer", TEXT, "A name that keeps snapshots from expiring that the stream has "
                 "not read.", Use.STREAM, aliases=(keys.CONSUMER_ID,)),
)  # fmt: skip

_WRITING = (
    SourceOption(PARTITIONS, choice("static", "dynamic"), "What mode `overwrite` replaces: "
                 "`static`, all rows (left out), or `dynamic`, the partitions that rows come to.",
                 Use.OVERWRITE, Says.REPLACED, like=("partitionoverwrite", "overwrite-mode")),
    SourceOption(WHERE_REPLACED, TEXT, "A condition in SQL on partition columns: the partitions "
                 "that mode `overwrite` replaces. Rows of others are refused.", Use.OVERWRITE,
                 Says.REPLACED),
    SourceOption(MERGE_SCHEMA, BOOLEAN, "Have the table grow first to take the rows, as "
                 "`merge_schema` of `Table.write` says.", _WRITES, aliases=("mergeSchema",)),
    SourceOption(NEW_SCHEMA, BOOLEAN, "Only `false`: an overwrite keeps the columns of the table; "
                 "ALTER TABLE changes them.", Use.APPEND | Use.OVERWRITE),
    SourceOption(COMMIT_USER, TEXT, "With the next one: an append that is made again under them "
                 "changes nothing.", Use.APPEND, aliases=("txnAppId",)),
    SourceOption(COMMIT_IDENTIFIER, integer(0, 2**63 - 1), "The number of the write, as "
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
        yield "| option | or | for | values | |"
        yield "|---|---|---|---|---|"
        for option in options:
            also = ", ".join(f"`{name}`" for name in option.aliases)
            uses = "all" if option.uses == _READS | _WRITES else _told(option.uses)
            yield f"| `{option.key}` | {also} | {uses} | {option.type.name} | {option.meaning} |"
        yield ""


def _told(uses: Use) -> str:
    return ", ".join(word for use, word in _WORDS.items() if use in uses)


if __name__ == "__main__":
    print(page())
