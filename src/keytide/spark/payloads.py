"""Tasks as rows of a plan, so that each Spark task receives its own work and that of no other.

Spark sends the function of a job to every task of it. So the function contains nothing that grows
with the number of tasks. The tasks themselves are rows that the driver sends. Spark cuts such rows
into as many parts as it has cores at that moment, so a plan for more parts is a union.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from keytide.spark.capacity import capacity_of

__all__ = ["packed", "payload_rows", "payloads_in", "unpacked"]

_SPARK_SCHEMA = StructType(
    [StructField("number", IntegerType()), StructField("payload", BinaryType())]
)
_SCHEMA = pa.schema([("number", pa.int32()), ("payload", pa.binary())])

_RELATIONS_MAX = 256
"""Each one takes Spark some milliseconds to plan. With more tasks, a Spark task runs several."""

_PAYLOADS_PER_SLICE = 2
"""So a Spark task runs one or two tasks, depending on how many cores are there."""

_BYTES_PER_NUMBER = 56
"""What Spark assumes for a number of a range as a row like the others."""

_NUMBERS_UNTOLD, _NUMBERS_MAX = 1 << 10, 64 << 20
"""Fewer numbers than the first are not worth a step. Generating the second takes 0.1 s."""


def packed(task: object) -> bytes:
    """A task as the bytes that are sent to an executor. Tasks repeat much of each other."""
    return zlib.compress(pickle.dumps(task, pickle.HIGHEST_PROTOCOL), 1)


def unpacked(payload: bytes) -> Any:
    """The task again."""
    return pickle.loads(zlib.decompress(payload))


def payload_rows(tasks: Iterable[object], spark: SparkSession, made_bytes: int = 0) -> DataFrame:
    """A row with the number and the payload of each task, in order, spread over Spark's tasks.

    Spark is made to assume that a Python step over the rows returns `made_bytes`.
    """
    payloads = [packed(task) for task in tasks]
    slices = capacity_of(spark).slices
    each = max(_PAYLOADS_PER_SLICE * slices, ceil(len(payloads) / _RELATIONS_MAX))
    starts = range(0, max(1, len(payloads)), each)
    parts = [_relation(start, payloads[start : start + each], spark) for start in starts]
    numbers = min(made_bytes // _BYTES_PER_NUMBER, _NUMBERS_MAX)
    if numbers <= _NUMBERS_UNTOLD:
        return _joined(parts)
    # Spark knows how many numbers a range has, and assumes that a filter returns as many.
    told = spark.range(0, numbers, 1, 1).where("id < 0")
    nothing = told.selectExpr("CAST(id AS INT) AS number", "CAST(NULL AS BINARY) AS payload")
    # The empty part of the range joins another one, so that it starts no Python worker.
    certain = sum(min(slices, len(payloads) - start) for start in starts)
    return _joined([*parts, nothing]).coalesce(max(1, certain))


def payloads_in(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """The number and the payload of each task in the rows of a Spark task."""
    for batch in rows:
        for number, payload in zip(*batch.columns, strict=True):
            yield number.as_py(), payload.as_py()


def _relation(start: int, payloads: Sequence[bytes], spark: SparkSession) -> DataFrame:
    numbers = range(start, start + len(payloads))
    rows = pa.table([[*numbers], [*payloads]], schema=_SCHEMA)
    return spark.createDataFrame(rows, _SPARK_SCHEMA)


def _joined(parts: list[DataFrame]) -> DataFrame:
    """The union of all parts, not nested deeper than Spark Connect allows."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [*(one.unionAll(other) for one, other in pairs), *odd]
    return parts[0]
