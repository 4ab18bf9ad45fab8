"""The data source options, one per row: for checks, messages and a table in docs/spark.md.

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
    def told(self) -> str:
        """The description for messages."""
        return _TOLD[self]


_TOLD = {
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


class Says(Flag):
    """What an option determines.

    Two options that determine the same thing contradict each other.
    """

    NOTHING = 0
    SNAPSHOT = auto()
    START = auto()
    END = auto()
    REPLACED = auto()

    @property
    def told(self) -> str:
        """The description for messages. REQUIRES: a single flag."""
        return _SETTLED[self]


_SETTLED = {
    Says.SNAPSHOT: "which snapshot is read",
    Says.START: "where changes start",
    Says.END: "where changes end",
    Says.REPLACED: "what is replaced",
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
    says: Says = Says.NOTHING
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
    SourceOption("snapshot-id", _SNAPSHOT, "The snapshot to read.", Use.SCAN, Says.SNAPSHOT,
                 ("versionAsOf",), ("version",)),
    SourceOption("tag", TEXT, "The tag to read.", Use.SCAN, Says.SNAPSHOT, (keys.SCAN_TAG_NAME,)),
    SourceOption("as-of", MOMENT, "Read the snapshot that was the latest at this time. A stream "
                 "starts after it.", Use.SCAN | Use.STREAM, Says.SNAPSHOT | Says.START,
                 ("timestampAsOf", "as-of-timestamp"), ("timestamp",)),
    SourceOption(keys.SCAN_VERSION, PLACE, "The snapshot or tag to read.", Use.SCAN, Says.SNAPSHOT),
    SourceOption(keys.SCAN_SNAPSHOT_ID, _SNAPSHOT, "The snapshot to read. A stream starts with "
                 "its changes.", Use.SCAN | Use.STREAM, Says.SNAPSHOT | Says.START),
    SourceOption(keys.SCAN_TIMESTAMP_MILLIS, _MILLIS, "Read the table as of this time. A stream "
                 "starts with the first commit at or after it.", Use.SCAN | Use.STREAM,
                 Says.SNAPSHOT | Says.START),
    SourceOption(keys.SCAN_TIMESTAMP, MOMENT, "The same.", Use.SCAN | Use.STREAM,
                 Says.SNAPSHOT | Says.START),
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
                 "`latest` in a stream.", _OF_CHANGES, Says.START),
    SourceOption("startingTimestamp", MOMENT, "Like `startingVersion`, by time: the first commit "
                 "at or after it.",
                 _OF_CHANGES, Says.START, ("stream-from-timestamp",)),
    SourceOption("start", PLACE, "Return the changes after this snapshot; 0 starts at the first "
                 "one. A stream also accepts `latest`, or `full` for all rows first.", _OF_CHANGES,
                 Says.START, ("start-snapshot-id",), ("startingoffsets",)),
    SourceOption("end", PLACE, "The last snapshot whose changes are returned. Default: the "
                 "latest.", Use.CHANGES, Says.END, ("endingVersion", "end-snapshot-id")),
    SourceOption("endingTimestamp", MOMENT, "Like `end`, by time.", Use.CHANGES, Says.END),
    SourceOption(keys.INCREMENTAL_BETWEEN, TEXT, "Start and end as `start,end`: snapshots or "
                 "tags.",
                 Use.CHANGES, Says.START | Says.END),
    SourceOption(BETWEEN_TIMES, TEXT, "Start and end as times, `start,end`: commits after the "
                 "first time, up to the second.", Use.CHANGES, Says.START | Says.END),
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
                 Use.OVERWRITE, Says.REPLACED, like=("partitionoverwrite", "overwrite-mode")),
    SourceOption(WHERE_REPLACED, TEXT, "SQL condition on partition columns that selects the "
                 "partitions that mode `overwrite` replaces. Rows of other partitions are "
                 "refused.", Use.OVERWRITE,
                 Says.REPLACED),
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
            uses = "all" if option.uses == _READS | _WRITES else _told(option.uses)
            yield f"| `{option.key}` | {also} | {uses} | {option.type.name} | {option.meaning} |"
        yield ""


def _told(uses: Use) -> str:
    return ", ".join(word for use, word in _WORDS.items() if use in uses)


if __name__ == "__main__":
    print(page())
