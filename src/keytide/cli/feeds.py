"""The commands that load change data into a table and show how far it is behind."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, cast

import pyarrow as pa
import typer

from keytide.base.record import rows_of
from keytide.cli.common_options import FormatOption as OutputFormat
from keytide.cli.common_options import (
    Limit,
    SparkMaster,
    TableArgument,
    Warehouse,
    names,
    open_named_table,
    refuse_cache,
    spark_log,
    spark_session,
    split_table_path,
)
from keytide.cli.output import Format, Properties, heartbeat, note, write_document, write_rows
from keytide.errors import InvalidError
from keytide.types import Field, RowType, parse_sql_type

# -- commands --------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from keytide.feeds.conversion import Encoding
    from keytide.feeds.feed import BatchReport, FeedRequest, IngestReport
    from keytide.feeds.kafka.ingest import KafkaRequest, TablesReport


class FeedFormat(str, Enum):
    """The change feeds that can be decoded."""

    DEBEZIUM = "debezium-json"
    MAXWELL = "maxwell-json"
    CANAL = "canal-json"
    DMS = "dms-json"
    ROWS = "json"


class LostMessages(str, Enum):
    """What to do if messages were deleted before they were read."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


Source = Annotated[
    str,
    typer.Option(
        "--from",
        help="Kafka topics, kafka://host:port/topic (hosts and topics can be comma-separated), "
        "or a folder, file or glob of files with one JSON message per line, gzip allowed.",
        metavar="SOURCE",
    ),
]
FormatOption = Annotated[FeedFormat, typer.Option("--format", help="Format of the messages.")]
Schema = Annotated[
    str | None,
    typer.Option(help='Columns of a new table: "order_id BIGINT, status STRING".'),
]
PrimaryKey = Annotated[str | None, typer.Option(help="Key columns of a new table: order_id,line")]
PartitionBy = Annotated[str | None, typer.Option(help="Partition columns of a new table: dt")]
SequenceBy = Annotated[
    str | None,
    typer.Option(
        help="Field of the messages that orders the changes of a key: source.lsn. Default: the "
        "position in the source's log or the time, whichever the format has."
    ),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option(help="Option of a new table; can be repeated.", metavar="KEY=VALUE"),
]
EmptyAsNull = Annotated[
    list[str] | None,
    typer.Option(help="Column in which '' means NULL; can be repeated.", metavar="COLUMN"),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="Folder for the progress of reading files; default: next to the tables of a local "
        "warehouse. Kafka offsets are stored in the table.",
        metavar="DIR",
    ),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(help="Table for messages that cannot be applied.", metavar="TABLE"),
]
MaxFiles = Annotated[int | None, typer.Option(min=1, help="Maximum number of files per commit.")]
MaxMessages = Annotated[
    int | None,
    typer.Option(
        min=1, help="Maximum number of Kafka messages per commit; default: 100,000.",
        show_default=False,
    ),
]  # fmt: skip
StartingOffsets = Annotated[
    str | None,
    typer.Option(
        help="Where to start in partitions without a stored offset: earliest (default), latest, "
        'or JSON: {"orders": {"0": 23}}',
        show_default=False,
    ),
]
ConsumerProperty = Annotated[
    list[str] | None,
    typer.Option(
        help="Property of the Kafka client (librdkafka), such as security.protocol=SSL; can be "
        "repeated.",
        metavar="NAME=VALUE",
    ),
]
ConsumerConfig = Annotated[
    Path | None,
    typer.Option(
        help="File with such properties, one per line; use it for passwords.",
        exists=True, dir_okay=False, show_default=False,
    ),
]  # fmt: skip
IfLostOption = Annotated[
    LostMessages | None,
    typer.Option(
        help="Where to continue if a topic was recreated or messages expired before they were "
        "read: earliest, latest, or fail (default) with an error that names them.",
        show_default=False,
    ),
]
Continuous = Annotated[
    bool,
    typer.Option(
        "--continuous/--once",
        help="Wait for new messages, or stop after all messages that existed at the start.",
    ),
]
EncodingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--encoding",
        help="How messages without a schema write values; can be repeated: decimal_scale=column "
        "(or a number) for base64 decimals, timestamp_unit=ms, time_unit=us, date_unit=d, "
        "binary=hex.",
        metavar="NAME=VALUE",
    ),
]
EpochOption = Annotated[
    list[str] | None,
    typer.Option(
        "--epoch",
        help="A log of the source, mysql-bin or mysql-bin@1 for server 1; repeat it for all logs "
        "in their order, for example after a failover.",
        metavar="LOG",
    ),
]
SourceTable = Annotated[
    str | None,
    typer.Option(
        help="The table of the source, as messages name it: shop.public.orders; * matches any part "
        "of a name. Default: the table of the first messages.",
        metavar="NAME",
    ),
]
Topics = Annotated[
    str,
    typer.Option("--from", help="Topics: kafka://host:port/topic.", metavar="SOURCE"),
]
MergeSchema = Annotated[
    bool,
    typer.Option(
        "--merge-schema/--keep-schema",
        help="Extend the table to fit the messages: add columns, and widen types. Otherwise "
        "unknown columns are ignored.",
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
    max_messages_per_batch: MaxMessages = None,
    starting_offsets: StartingOffsets = None,
    consumer_property: ConsumerProperty = None,
    consumer_config: ConsumerConfig = None,
    if_lost: IfLostOption = None,
    continuous: Continuous = False,
    merge_schema: MergeSchema = False,
    encoding: EncodingOption = None,
    epoch: EpochOption = None,
    source_table: SourceTable = None,
    spark: SparkMaster = None,
) -> None:
    """Load change data into a table.

    Reads messages of Debezium, Maxwell, Canal and AWS DMS, or plain JSON rows. The table is created
    if it does not exist. Each batch is reported on standard error, and a summary on standard
    output.

    Kafka topics are read by this process (pip install 'keytide[kafka]'). Each batch is one commit
    that also stores the offsets it reached, and the next run continues there. Every message is
    applied exactly once. keytide lag shows how many messages are left.

    To load several tables in one run, use a template such as shop.{table}. In topic names, *
    matches any part of a name. {table} is the part of the topic name after the last dot, {database}
    the part before it, and {topic} the whole name with underscores instead of dots. If a table
    fails, the others continue and the exit code is 1.

    Files are read by Spark (pip install 'keytide[spark]'). Each file is applied exactly once if you
    repeat the command with the same checkpoint.

    A new table gets additional columns that order the changes of a key. Their names start with an
    underscore, and they are the table's sequence.field: _epoch, _commit_lsn and _lsn for Debezium
    from PostgreSQL; _epoch, _file, _pos and _row for MySQL. They give the order of commits at the
    source. Changes from another log than the known ones are an error; name the logs with --epoch. A
    message counts as late if a newer change of its key came first: in an
    earlier batch or, in the same batch, earlier in its file or in an older file.

    Example: keytide ingest -w /data/lake shop.orders --from kafka://localhost:9092/shop.orders
    --format debezium-json --continuous

    Example: keytide ingest -w /data/lake "shop.{table}" --from
    "kafka://localhost:9092/shop.public.*" --format debezium-json --continuous

    Example: keytide ingest -w /data/lake shop.orders --from "/feed/*.json" --format debezium-json
    --primary-key order_id --schema "order_id BIGINT, status STRING" --sequence-by source.lsn
    """
    # Change feeds import DuckDB, which other commands do not need.
    from keytide.feeds.feed import FeedRequest
    from keytide.feeds.kafka.ingest import KafkaRequest
    from keytide.feeds.kafka.topics import is_kafka, is_template

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
        encoding=_encoding(encoding),
        epochs=tuple(epoch or ()),
        source_table=source_table,
        max_messages_per_batch=max_messages_per_batch,
        starting_offsets=starting_offsets,
        consumer_properties=_properties(consumer_property, consumer_config),
        if_lost=None if if_lost is None else if_lost.value,
    )
    if is_kafka(source):
        if spark is not None:
            raise typer.BadParameter(
                f"--spark {spark} does not apply to Kafka topics, which this process reads; "
                "remove it"
            )
        of_tables = KafkaRequest.of(request)
        if is_template(name):
            _report_tables(_run_tables(of_tables))
            return
        report = _run_topics(of_tables)
    else:
        if is_template(name):
            raise typer.BadParameter(
                f"{name}: a table template requires Kafka topics; files can load only one table"
            )
        request.refuse_topic_options()
        report = _run_files(request, spark)
    _report_totals(report)


def lag(
    table: TableArgument,
    source: Topics,
    warehouse: Warehouse = None,
    consumer_property: ConsumerProperty = None,
    consumer_config: ConsumerConfig = None,
    limit: Limit = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show how far a table is behind its Kafka topics.

    Shows one line per partition. Reads offsets from the brokers but no messages. Requires pip
    install 'keytide[kafka]'. The column lost counts offsets that expired before they were read.

    Example: keytide lag -w /data/lake shop.orders --from kafka://localhost:9092/shop.orders
    """
    from keytide.feeds.kafka.start import PartitionLag

    properties = _properties(consumer_property, consumer_config)
    found = open_named_table(table, warehouse).kafka_lag(source, consumer_properties=properties)
    rows = rows_of(PartitionLag, found)
    write_rows(rows.to_batches(), rows.schema, format, limit)


def _run_files(request: FeedRequest, master: str | None) -> IngestReport:
    """Load files and report each batch. Raises `SetupError` without Spark."""
    # Spark is an extra. If it is missing, the error of this import says how to install it.
    from keytide.spark.runner import running_tasks

    reporter = _FeedReporter()
    with spark_log() as log:
        spark = spark_session(master, log)
        with heartbeat(lambda: reporter.progress(running_tasks(spark))):
            from keytide.spark.ingest import run_feed

            return run_feed(request, spark, reporter.batch)


def _run_topics(request: KafkaRequest) -> IngestReport:
    from keytide.feeds.kafka.ingest import run_feed

    reporter = _FeedReporter()
    with heartbeat(lambda: reporter.progress((0, 0))):
        return run_feed(request, reporter.batch)


def _run_tables(request: KafkaRequest) -> TablesReport:
    from keytide.feeds.kafka.ingest import IngestListeners, run_feeds

    reporter = _FeedReporter()
    listeners = IngestListeners(reporter.batch_of, lambda table, error: note(f"{table}: {error}"))
    with heartbeat(lambda: reporter.progress((0, 0))):
        return run_feeds(request, listeners=listeners)


class _FeedReporter:
    """Reports a feed on standard error: its batches, and its progress between them."""

    def __init__(self) -> None:
        self._batches = self._messages = 0
        self._lock = Lock()
        self._began = time.monotonic()

    def batch(self, batch: BatchReport) -> None:
        """Report a committed batch."""
        self._batches += 1
        self._messages += batch.rows_in
        _report_batch(batch)

    def batch_of(self, table: str, batch: BatchReport) -> None:
        """The same for one of several tables."""
        with self._lock:
            self._batches += 1
            self._messages += batch.rows_in
            _report_batch(batch, f"{table}: ")

    def progress(self, tasks: tuple[int, int]) -> str:
        """A line about what is done, and the completed and total tasks of the running batch."""
        seconds = time.monotonic() - self._began
        done, count = tasks
        committed = (
            f"{seconds:,.0f} s: {self._messages:,} messages in {self._batches:,} batches committed"
        )
        return f"{committed}; next batch: {done:,} of {count:,} tasks done" if count else committed


def _report_totals(report: IngestReport) -> None:
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


def _report_tables(report: TablesReport) -> None:
    """Report the result of each table. Exits with 1 if one failed."""
    done = [
        {
            "table": each.table,
            "batches": len(each.batches),
            "messages": each.rows_in,
            "applied": each.applied,
            "rejected": each.rejected,
            "error": None,
        }
        for each in report.tables
    ]
    failed = [{"table": name, "error": str(error)} for name, error in report.failed.items()]
    rows = pa.Table.from_pylist([*done, *failed], _TABLE_FIELDS)
    write_rows(rows.to_batches(), rows.schema, Format.TABLE, rows.num_rows)
    if report.failed:
        raise typer.Exit(1)


_TABLE_FIELDS = pa.schema(
    [
        pa.field("table", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("batches", "messages", "applied", "rejected")),
        pa.field("error", pa.string()),
    ]
)


def _report_batch(batch: BatchReport, of: str = "") -> None:
    note(
        f"{of}batch {batch.batch_id}: {batch.rows_in:,} messages, {batch.applied:,} applied, "
        f"{batch.late:,} late, {batch.duplicate:,} duplicate, {batch.rejected:,} rejected, "
        f"{batch.skipped:,} skipped, {batch.seconds:.1f} s"
    )


def _fields(text: str) -> tuple[Field, ...]:
    try:
        row = parse_sql_type(f"ROW<{text}>")
    except InvalidError as error:
        raise typer.BadParameter(f"--schema {text!r}: {error}") from error
    return cast(RowType, row).fields


def _encoding(given: list[str] | None) -> Encoding | None:
    from keytide.feeds.conversion import Encoding

    if not given:
        return None
    named = dict(_key_value(text, "--encoding", "timestamp_unit=ms") for text in given)
    known = [field.name for field in fields(Encoding)]
    for name in named:
        if name not in known:
            raise typer.BadParameter(f"--encoding {name}: expected one of {', '.join(known)}")
    scale: Any = named.get("decimal_scale")
    if scale is not None and scale.isdigit():
        scale = int(scale)
    return replace(Encoding(), **{**named, "decimal_scale": scale})


def _properties(given: list[str] | None, file: Path | None) -> dict[str, str]:
    """Properties of a client. Those that are given override those of the file."""
    from keytide.feeds.kafka.client import read_properties

    found = {} if file is None else read_properties(file)
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"--consumer-property {name!r}; expected NAME=VALUE")
        found[name.strip()] = value
    return found


def _key_value(text: str, option: str = "--option", example: str = "bucket=4") -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise typer.BadParameter(f"{option} {text!r}; expected KEY=VALUE such as {example}")
    return key.strip(), value.strip()
