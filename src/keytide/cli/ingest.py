"""The command that feeds a table from files of change data, on Spark."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, cast

import typer

from keytide.cli.address import split_table_path
from keytide.cli.grid import Properties
from keytide.cli.near import refuse_cache
from keytide.cli.output import Format, note, write_document
from keytide.cli.parameters import TableArgument, Warehouse, names
from keytide.cli.progress import heartbeat
from keytide.cli.spark_log import spark_log
from keytide.errors import InvalidError
from keytide.types import Field, RowType, parse_sql_type

if TYPE_CHECKING:
    from keytide.cdc.request import FeedRequest
    from keytide.spark.ingest import BatchReport, IngestReport

__all__ = ["FeedFormat", "ingest"]


class FeedFormat(str, Enum):
    """The change feeds that can be decoded."""

    DEBEZIUM = "debezium-json"
    MAXWELL = "maxwell-json"
    CANAL = "canal-json"
    DMS = "dms-json"


Source = Annotated[
    str,
    typer.Option(
        "--from",
        help="Folder, file or glob of files, one JSON message a line; gzip is fine.",
        metavar="PATH",
    ),
]
FormatOption = Annotated[FeedFormat, typer.Option("--format", help="What the feed is.")]
Schema = Annotated[
    str | None,
    typer.Option(help='Columns of a new table: "order_id BIGINT, status STRING".'),
]
PrimaryKey = Annotated[str | None, typer.Option(help="Key columns of a new table: order_id,line")]
PartitionBy = Annotated[str | None, typer.Option(help="Partition columns of a new table: dt")]
SequenceBy = Annotated[
    str | None,
    typer.Option(
        help="What orders the changes of a key, feed metadata: source.lsn. By default the position "
        "in the log of the source, or the time, whichever the feed has."
    ),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option(help="Option of a new table; may be repeated.", metavar="KEY=VALUE"),
]
EmptyAsNull = Annotated[
    list[str] | None,
    typer.Option(help="Column whose source writes '' for NULL; may be repeated.", metavar="COLUMN"),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="Folder of the stream's progress; by default beside the tables of a local warehouse.",
        metavar="DIR",
    ),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(help="Table that takes the messages that cannot be applied.", metavar="TABLE"),
]
MaxFiles = Annotated[int | None, typer.Option(min=1, help="Files to read in one commit, at most.")]
Continuous = Annotated[
    bool,
    typer.Option("--continuous/--once", help="Wait for more files, or end when all are read."),
]
MergeSchema = Annotated[
    bool,
    typer.Option(
        "--merge-schema/--keep-schema",
        help="Have the table grow with the feed: add the columns that messages bring, and widen "
        "types where values do not fit. Otherwise such columns are left out.",
    ),
]


def ingest(
    table: TableArgument,
    source: Source,
    format: FormatOption,
    warehouse: Warehouse = None,
    schema: Schema = None,
    primary_key: PrimaryKey = None,
    partition_by: PartitionBy = None,
    sequence_by: SequenceBy = None,
    option: TableOption = None,
    empty_as_null: EmptyAsNull = None,
    checkpoint: Checkpoint = None,
    dead_letter: DeadLetter = None,
    max_files_per_batch: MaxFiles = None,
    continuous: Continuous = False,
    merge_schema: MergeSchema = False,
) -> None:
    """Feed a table from files of Debezium, Maxwell, Canal or AWS DMS change data.

    Runs on Spark and needs the extra: pip install 'keytide[spark]'. A table that does not exist
    is made. Each file is applied exactly once, however often the command is repeated with the
    same checkpoint. Standard error tells of each batch, standard output what was done in all.

    A new table has columns for what orders the changes of a key, named with an underscore and used
    as its sequence.field: _lsn for PostgreSQL by Debezium; _file, _pos and _row for MySQL. A
    message is late if a newer change of its key came before it: in an earlier batch, or in the
    same batch further up in its file or in a file that was written earlier.

    Example: keytide ingest -w /data/lake shop.orders --from "/feed/*.json" --format debezium-json
    --primary-key order_id --schema "order_id BIGINT, status STRING" --sequence-by source.lsn
    """
    # Change feeds bring DuckDB along, which other commands start without.
    from keytide.cdc.request import FeedRequest

    refuse_cache("ingest")
    root, name = split_table_path(table, warehouse)
    request = FeedRequest(
        warehouse=root,
        table=name,
        source=source,
        format=format.value,
        columns=None if schema is None else _fields(schema),
        primary_key=names(primary_key),
        partition_by=names(partition_by),
        sequence_by=names(sequence_by),
        options=dict(map(_key_value, option or ())),
        empty_as_null=tuple(n for text in empty_as_null or () for n in names(text)),
        checkpoint=checkpoint,
        dead_letter=dead_letter,
        max_files_per_batch=max_files_per_batch,
        continuous=continuous,
        merge_schema=merge_schema,
    )
    _tell_in_all(_run(request))


def _run(request: FeedRequest) -> IngestReport:
    """Carry the feed out and tell of each batch. Raises `SetupError` without Spark."""
    from keytide.spark.ingest import run_feed
    from keytide.spark.runner import running_tasks
    from keytide.spark.session import session

    with spark_log() as log:
        with log.standard_error():
            spark = session()
        told = _Told()
        with heartbeat(lambda: told.progress(running_tasks(spark))):
            return run_feed(request, spark, told.batch)


class _Told:
    """What standard error was told of a feed, and what there is to tell in between."""

    def __init__(self) -> None:
        self._batches = self._messages = 0
        self._began = time.monotonic()

    def batch(self, batch: BatchReport) -> None:
        """A batch is committed."""
        self._batches += 1
        self._messages += batch.rows_in
        _tell(batch)

    def progress(self, tasks: tuple[int, int]) -> str:
        """A line about what is done so far, with the tasks of what runs now: done, and all."""
        seconds = time.monotonic() - self._began
        done, count = tasks
        committed = (
            f"{seconds:,.0f} s: {self._messages:,} messages in {self._batches:,} batches committed"
        )
        return f"{committed}; in the next one {done:,} of {count:,} tasks" if count else committed


def _tell_in_all(report: IngestReport) -> None:
    summary = {
        "table": report.table,
        "batches": len(report.batches),
        "messages": report.rows_in,
        "applied": report.applied,
        "rejected": report.rejected,
    }
    if report.rejected:
        summary["dead_letter"] = report.dead_letter
    write_document(summary, [Properties(summary)], Format.TABLE)


def _tell(batch: BatchReport) -> None:
    note(
        f"batch {batch.batch_id}: {batch.rows_in:,} messages, {batch.applied:,} applied, "
        f"{batch.late:,} late, {batch.duplicate:,} duplicate, {batch.rejected:,} rejected, "
        f"{batch.skipped:,} skipped, {batch.seconds:.1f} s"
    )


def _fields(text: str) -> tuple[Field, ...]:
    try:
        row = parse_sql_type(f"ROW<{text}>")
    except InvalidError as error:
        raise typer.BadParameter(f"--schema {text!r}: {error}") from error
    return cast(RowType, row).fields


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise typer.BadParameter(f"--option {text!r}; expected KEY=VALUE such as bucket=4")
    return key.strip(), value.strip()
