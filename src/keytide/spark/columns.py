"""Columns on Spark: types, predicates, buckets, and the distribution of rows to tasks.

- Every column is nullable in Spark, as in Spark's file sources, so that a DataFrame's schema does
  not depend on how the rows are read. TIME has nanoseconds and timestamps have microseconds, as in
  Spark. Smaller fractions of a second are truncated.
- For buckets, integer keys are hashed by SQL expressions, which Spark compiles into the stage that
  reads the rows. Other keys are hashed in Python (an Arrow UDF), which takes several times as long.
  Both give the buckets that the table format defines.
- A task computes the generated columns of the rows that it writes. If rows are first grouped by
  partition and bucket, the columns that determine partition and bucket are computed before that, by
  the same engine as in tasks. Spark might evaluate an expression differently.
- With the distribution `hash`, a shuffle brings the rows of each bucket to one task, so that each
  bucket gets one sorted run. With `none`, the rows stay in the partitions of the DataFrame, and
  each task writes a run for each bucket in its rows. This saves a third to a half of the work of a
  load, but readers must merge the runs until they are compacted. In both cases the later row of a
  key wins: the rows of a task are sorted by their position in the DataFrame after a shuffle, whose
  blocks arrive in any order, and the tasks of later partitions use higher sequence numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from operator import and_, or_
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegralType, StructType, TimestampNTZType, TimestampType

from keytide.base.process import scratch
from keytide.definition.column_rules import GeneratedColumn, generated_columns
from keytide.definition.kind import check_distribution, why_brought_together
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.arrow import to_arrow
from keytide.format.binary_row import header_size_bytes
from keytide.format.bucket import SEED, bucket_ids
from keytide.options import keys
from keytide.predicate.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Predicate,
    balanced,
    like_parts,
)
from keytide.predicate.value_columns import as_key, convert_column
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import TableView
from keytide.spark.capacity import TASKS_PER_SLOT, capacity_of, tasks_for
from keytide.spark.error_translation import knows_aliases
from keytide.spark.internals import (
    estimated_bytes,
    from_arrow_schema,
    is_apache_spark,
    is_connect,
    partition_count,
    planned_bytes,
    server_name,
    to_arrow_schema,
)
from keytide.types import Field, arrow_schema, quoted
from keytide.write.generated_columns import computed_values
from keytide.write.task import Order, WriteTask

# -- shuffles --------------------------------------------------------------------------------------


def partition_by(rows: DataFrame, places: int, by: Column) -> DataFrame:
    """The rows in `places` partitions. Those of one place, a number from 0, are in one partition.

    In Apache Spark, each place has a partition of its own.
    """
    if is_apache_spark(rows.sparkSession):
        return rows.repartitionById(places, by)
    return rows.repartition(places, by)


# -- types and Arrow batches -----------------------------------------------------------------------


_ROW_BYTES, _VALUE_BYTES = 8, {"binary": 100, "string": 20}
"""What Spark assumes for a row, and for values that are larger than a number."""

# Spark converts a whole batch at a time. Larger batches only need more memory.
_BATCH_ROWS = 32 << 10


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of a scan's rows."""
    return from_arrow_schema(batch_schema(schema))


def batch_schema(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema in which Spark accepts a scan's rows."""
    return pa.schema([_batch_field(field) for field in schema])


def row_bytes(schema: StructType) -> int:
    """About the size that Spark assumes for a row."""
    kinds = (field.dataType.typeName() for field in schema.fields)
    return _ROW_BYTES + sum(_VALUE_BYTES.get(kind, 8) for kind in kinds)


def spark_batches(frame: pl.DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns of `schema` as batches of `batch_schema(schema)`."""
    yield from batches_of(to_arrow(frame, schema))


def batches_of(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Arrow rows as batches of their `batch_schema`."""
    target = batch_schema(rows.schema)
    columns = [_convert(c, f.type) for c, f in zip(rows.columns, target, strict=True)]
    yield from pa.Table.from_arrays(columns, schema=target).to_batches(_BATCH_ROWS)


def arrow_schema_of(schema: StructType, table: str) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows.

    Raises `InvalidError`, naming the columns whose type has no Arrow equivalent.
    """
    try:
        return to_arrow_schema(schema)
    except PySparkException:
        wrong = []
        for field in schema.fields:
            try:
                to_arrow_schema(StructType([field]))
            except PySparkException:  # noqa: PERF203  # only before an error
                wrong.append(f"{field.name!r} is {field.dataType.simpleString()}")
        raise InvalidError(
            f"table {table}: the DataFrame has columns of unsupported types: {', '.join(wrong)}; "
            "cast or drop them"
        ) from None


def _batch_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _batch_type(field.type), nullable=True)


def _batch_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", tz=data_type.tz)
    if pa.types.is_time(data_type):
        return pa.time64("ns")
    if pa.types.is_map(data_type):
        key = pa.field("key", _batch_type(data_type.key_type), nullable=False)
        return pa.map_(key, _batch_field(data_type.item_field.with_name("value")))
    if pa.types.is_list(data_type) or pa.types.is_fixed_size_list(data_type):
        return pa.list_(_batch_field(data_type.value_field.with_name("element")))
    if pa.types.is_struct(data_type):
        return pa.struct([_batch_field(member) for member in data_type])
    return data_type


def _convert(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(target):
        return column
    if pa.types.is_timestamp(target) and column.type.unit == "ns":
        # Spark rounds down, but a cast would round towards 1970.
        column = pc.floor_temporal(column, unit="microsecond")
    return column.cast(target, safe=False)


# -- predicates ------------------------------------------------------------------------------------


def column(name: str) -> Column:
    """The column with exactly this name, including any dots."""
    return F.col(quoted(name))


def spark_condition(predicate: Predicate, fields: Sequence[Field], schema: StructType) -> Column:
    """The predicate over a DataFrame with the columns `fields`. A NULL result drops the row.

    `schema` has the Spark types of the columns.
    """
    by_name = {f.name: f for f in fields}

    def compared(name: str) -> Column:
        return F.rtrim(column(name)) if by_name[name].type.root == "CHAR" else column(name)

    def literal(name: str, value: Any) -> Column:
        field = by_name[name]
        type_ = schema[field.name].dataType
        if isinstance(type_, TimestampType | TimestampNTZType):
            micros = value * {"ms": 1000, "us": 1}[field.type.to_arrow().unit]
            return _time(micros, has_zone=isinstance(type_, TimestampType))
        if field.type.root == "CHAR":
            value = value.rstrip(" ")
        return F.lit(value).cast(type_)

    def build(node: Predicate) -> Column:
        if isinstance(node, Comparison):
            return _COMPARE[node.operator](compared(node.column), literal(node.column, node.value))
        if isinstance(node, In):
            values = [literal(node.column, value) for value in node.values]
            never = F.when(column(node.column).isNotNull(), F.lit(False))
            return compared(node.column).isin(values) if values else never
        if isinstance(node, IsNull):
            return column(node.column).isNull()
        if isinstance(node, Like):
            # The pattern with a backslash only where Spark accepts one.
            like_pattern = "".join(
                character if is_wildcard or character not in "%_\\" else "\\" + character
                for character, is_wildcard in like_parts(node.pattern)
            )
            return column(node.column).like(like_pattern)
        if isinstance(node, Not):
            return ~build(node.term)
        connective = and_ if isinstance(node, And) else or_
        return balanced(connective, [build(term) for term in node.terms])

    return build(predicate)


_COMPARE: dict[str, Callable[[Column, Column], Column]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def constant(value: pa.Scalar, type_: DataType) -> Column:
    """A value as a column of a Spark type."""
    if pa.types.is_timestamp(value.type) and value.is_valid:
        micros = value.cast(pa.timestamp("us", value.type.tz)).value
        return _time(micros, has_zone=value.type.tz is not None).cast(type_)
    return F.lit(value.as_py()).cast(type_)


def _time(micros: int, *, has_zone: bool) -> Column:
    # A datetime object would be interpreted in the time zone of the session or of this machine.
    if has_zone:
        return F.timestamp_micros(F.lit(micros))
    text = (datetime(1970, 1, 1) + timedelta(microseconds=micros)).isoformat()
    return F.lit(text).cast(TimestampNTZType())


# -- buckets ---------------------------------------------------------------------------------------


def with_bucket(rows: DataFrame, view: TableView, buckets: int, name: str) -> DataFrame:
    """Add an INT column that contains the bucket of each row, out of `buckets` buckets.

    A row whose key is NULL or cannot be converted gets an arbitrary bucket. Writing the row reports
    the error.
    """
    fields = view.bucket_fields
    # The schema of rows can be a request.
    if view.bucket_function != "default" or not all(
        field.type.root in {*_SLOT_MASKS, "BIGINT"}
        and isinstance(rows.schema[field.name].dataType, IntegralType)
        for field in fields
    ):
        return rows.select("*", _by_udf(fields, view, buckets).alias(name))
    kept = [quoted(column) for column in rows.columns]

    # The 4-byte words of the binary row of some columns, each as a BIGINT from 0 to 2^32 - 1.
    words = [_ZERO] * (header_size_bytes(len(fields)) // 4)
    for field in fields:
        mask = _SLOT_MASKS.get(field.type.root)
        value = f"coalesce(CAST({quoted(field.name)} AS BIGINT), {_ZERO})"
        if mask is None:
            words += [_low_half(value), f"shiftrightunsigned({value}, 32)"]
        else:
            words += [f"({value} & {mask}L)", _ZERO]
    steps, bucket = _murmur3_modulo(words, buckets)
    if knows_aliases(rows.sparkSession):
        stepped = rows.selectExpr(*kept, *steps)
    else:  # one query per step, which takes twice as long to plan
        stepped = reduce(lambda made, step: made.selectExpr("*", step), steps, rows)
    return stepped.selectExpr(*kept, f"{bucket} AS {name}")


# -- buckets by SQL --------------------------------------------------------------------------------

_SLOT_MASKS = {"TINYINT": 0xFF, "SMALLINT": 0xFFFF, "INT": 0xFFFF_FFFF}
_ZERO = "0L"


def _murmur3_modulo(words: Sequence[str], buckets: int) -> tuple[list[str], str]:
    """Murmur3 as a list of steps that refer to each other by name, and the bucket expression.

    Each step is a column that later steps refer to in the same SELECT. Written as one expression,
    the size would double with each step. Arithmetic stays within BIGINT, because ANSI mode refuses
    overflows.
    """
    steps: list[str] = []

    def let(expression: str) -> str:
        name = scratch(f"step_{len(steps)}")
        steps.append(f"{expression} AS {name}")
        return name

    state = f"{SEED}L"
    for word in words:
        mixed = state
        if word != _ZERO:  # a word of zeros has no effect on the hash
            scrambled = let(_rotated(_times(word, 0xCC9E2D51), 15))
            mixed = f"({state} ^ {_times(scrambled, 0x1B873593)})"
        state = let(_low_half(f"({_rotated(mixed, 13)} * 5L + {0xE6546B64}L)"))
    state = let(_times(_with_high_bits_xored(f"({state} ^ {4 * len(words)}L)", 16), 0x85EBCA6B))
    state = let(_times(_with_high_bits_xored(state, 13), 0xC2B2AE35))
    state = let(_with_high_bits_xored(state, 16))
    signed = f"(CASE WHEN {state} < {1 << 31}L THEN {state} ELSE {state} - {1 << 32}L END)"
    return steps, f"CAST(abs({signed} % {buckets}L) AS INT)"


def _low_half(value: str) -> str:
    return f"({value} & {0xFFFF_FFFF}L)"


def _times(value: str, factor: int) -> str:
    """The low 32 bits of a product. The factor is split into halves to avoid an overflow."""
    high = f"shiftleft(({value} * {factor >> 16}L) & {0xFFFF}L, 16)"
    return _low_half(f"({value} * {factor & 0xFFFF}L + {high})")


def _rotated(value: str, bits: int) -> str:
    return _low_half(f"(shiftleft({value}, {bits}) | shiftrightunsigned({value}, {32 - bits}))")


def _with_high_bits_xored(value: str, bits: int) -> str:
    return f"({value} ^ shiftrightunsigned({value}, {bits}))"


# -- buckets by Python -----------------------------------------------------------------------------


def _by_udf(fields: Sequence[Field], view: TableView, buckets: int) -> Column:
    function, table = view.bucket_function, view.name

    def bucket(*columns: pa.Array) -> pa.Array:
        try:
            keys = [
                as_key(convert_column(pa.chunked_array([c]), f, table), f).combine_chunks()
                for c, f in zip(columns, fields, strict=True)
            ]
        except InvalidError:
            return pa.repeat(pa.scalar(0, pa.int32()), len(columns[0]))
        types = [f.type for f in fields]
        return pa.array(bucket_ids(keys, types, buckets, function))

    return F.arrow_udf(bucket, "int")(*[column(f.name) for f in fields])


# -- generated columns before a shuffle ------------------------------------------------------------


def with_placing_columns(rows: DataFrame, view: TableView) -> DataFrame:
    """Fill the generated partition and bucket columns where they are missing or NULL.

    A row for which one cannot be computed can go to any task. Writing it reports the error.
    """
    placing = {*view.schema.partition_keys, *(field.name for field in view.bucket_fields)}
    for made in generated_columns(view.schema, view.options):
        name = made.field.name
        if name in placing and set(made.columns) <= set(rows.columns):
            computed = _generated_by_udf(made, view)
            if name in rows.columns:
                computed = F.coalesce(column(name), computed)
            rows = rows.withColumn(name, computed)
    return rows


def _generated_by_udf(made: GeneratedColumn, view: TableView) -> Column:
    def compute(*columns: pa.Array) -> pa.Array:
        nothing = pa.nulls(len(columns[0]), made.field.type.to_arrow())
        try:
            given = {
                field.name: convert_column(pa.chunked_array([values]), field, view.name)
                for field, values in zip(made.read, columns, strict=True)
            }
            given[made.field.name] = pa.chunked_array([nothing])
            found, _ = computed_values(made, given, view.schema, view.name)
        except InvalidError:
            return nothing
        return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)

    type_ = spark_schema(arrow_schema([made.field])).fields[0].dataType
    return F.arrow_udf(compute, type_)(*[column(name) for name in made.columns])


# -- the distribution of rows to tasks -------------------------------------------------------------


_SMALL_BYTES = 10 << 20
"""Below this size, a task costs more than it gains.

It is Spark's own limit for a small relation.
"""

_ROWS_PER_PLANNED = 2
"""How many times larger rows are in memory than Spark estimates for rows from files."""


def distribute(task: WriteTask, df: DataFrame, live: LiveFiles) -> tuple[WriteTask, DataFrame]:
    """The write task and the DataFrame to feed it with, according to 'write.distribution'.

    `live` are the table's current files. Plans the DataFrame, but runs no job. Raises
    `InvalidError` for an option set by another engine whose value is not supported.
    """
    check_distribution(task.view.schema, task.view.options)
    task = replace(task, order=order_by_bucket(df))
    partitions = None if is_connect(df) else partition_count(df)
    if partitions == 1:
        return replace(task, threads=_threads(df, 1)), df  # a single task can use all cores
    if _keeps_partitions(task.view, df, partitions, live):
        return replace(task, threads=_threads(df, partitions)), df
    task = replace(task, layout=task.layout.for_tasks(writers_for_rows(df)))
    return task, by_bucket(df, task.view, task.layout.spread)


def order_by_bucket(df: DataFrame) -> Order:
    """What tasks know of the order of a DataFrame's rows that are grouped by bucket."""
    return Order.KNOWN if is_apache_spark(df.sparkSession) else Order.UNKNOWN


def _keeps_partitions(
    view: TableView, df: DataFrame, partitions: int | None, live: LiveFiles
) -> bool:
    """Whether rows stay in their partitions."""
    # Whether any number of tasks can write to one bucket, because its rows are never merged.
    one_place = not view.schema.partition_keys and view.options.bucket <= 1
    if one_place and not view.kind.has_key:
        return True
    chosen = view.options.write_distribution
    if chosen == "none" and view.kind.has_key and not is_apache_spark(df.sparkSession):
        raise UnsupportedError(
            f"table {view.name}: '{keys.WRITE_DISTRIBUTION}' = 'none' leaves rows where they are, "
            f"but {server_name(df.sparkSession)} does not keep their order. Set it to 'auto', or "
            "write df.toArrow()"
        )
    if chosen != "auto":
        return chosen == "none"
    if (
        partitions is None
        or view.schema.partition_keys
        or any(not bucket.is_empty for bucket in live.buckets.values())
    ):
        return False
    if why_brought_together(view.schema, view.options) is not None:
        return False
    planned = planned_bytes(df)
    if planned <= _SMALL_BYTES:
        return False

    # The number of runs that each bucket gets from this number of partitions.
    held = _ROWS_PER_PLANNED * planned / max(partitions, 1)
    runs = partitions * math.ceil(held / view.options.write_buffer_bytes)
    return runs < view.options.compaction_trigger_runs


def _threads(df: DataFrame, partitions: int | None) -> int:
    """Threads of each task, when there are fewer tasks than cores."""
    if partitions is None:
        return 1
    capacity = capacity_of(df.sparkSession)
    return max(1, min(capacity.slots_per_process, (capacity.slots or 1) // max(partitions, 1)))


# -- groups of rows by bucket ----------------------------------------------------------------------

_BUCKET, _TARGET, _ORDER = map(scratch, ("bucket", "target", "order"))


def by_bucket(df: DataFrame, view: TableView, spread: int) -> DataFrame:
    """Shuffle each bucket into one partition, whose rows keep their order in the DataFrame."""
    df = with_placing_columns(df, view)
    names = [quoted(name) for name in df.columns]
    # When keys can move between partitions, all rows of a key must reach one task.
    apart = () if view.moves_keys else view.schema.partition_keys
    partition_keys = ", ".join(map(quoted, apart))
    count = tasks_for_rows(df) if partition_keys else min(tasks_for_rows(df), spread)
    # Any hash works here as long as a bucket stays together. The bucket itself is computed below by
    # the format's own hash.
    target = f"pmod(hash({partition_keys}), {count})" if partition_keys else "0"
    keeps_order = is_apache_spark(df.sparkSession)
    rows = df
    if keeps_order:
        rows = rows.selectExpr(*names, f"monotonically_increasing_id() AS {_ORDER}")
        names = [*names, _ORDER]
    if spread > 1:
        rows = with_bucket(rows, view, spread, _BUCKET)
        target = f"{target} + {_BUCKET}"
    targeted = rows.selectExpr(*names, f"{target} AS {_TARGET}")
    shuffled = partition_by(targeted, count, column(_TARGET))
    if not keeps_order:
        return shuffled.drop(_TARGET)
    # Blocks of other executors arrive in any order, and Spark can spill what it sorts.
    return shuffled.sortWithinPartitions(_ORDER).drop(_TARGET, _ORDER)


def tasks_for_rows(df: DataFrame) -> int:
    """The number of tasks of a step over all rows.

    Spark's estimate for a join is far too large. So it never leads to more tasks than several for
    each core, or than Spark uses for a shuffle.
    """
    spark = df.sparkSession
    most, shuffled = tasks_for(spark, None), spark.conf.get("spark.sql.shuffle.partitions", None)
    limit = max(most, int(shuffled)) if shuffled and shuffled.isdecimal() else most
    return min(limit, tasks_for(spark, estimated_bytes(df)))


def writers_for_rows(df: DataFrame) -> int:
    """The number of tasks that may each begin new buckets: fewer, so that buckets are not small."""
    return math.ceil(tasks_for_rows(df) / TASKS_PER_SLOT)
