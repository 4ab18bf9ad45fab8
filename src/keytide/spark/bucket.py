"""The bucket of each row as a column of a DataFrame.

Integer keys are hashed by SQL expressions, which Spark compiles into the stage that reads the rows.
Other keys are hashed in Python (an Arrow UDF), which takes several times as long. Both give the
buckets that the table format defines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StructType

from keytide.base.scratch import scratch
from keytide.errors import InvalidError
from keytide.format.binary_row import header_size_bytes
from keytide.format.bucket import SEED, bucket_ids
from keytide.predicate.values.columns import as_key, convert_column
from keytide.snapshot.view import TableView
from keytide.spark.aliases import knows_aliases
from keytide.spark.predicate import column
from keytide.types import Field, quoted

__all__ = ["with_bucket"]


def with_bucket(rows: DataFrame, view: TableView, buckets: int, name: str) -> DataFrame:
    """Add an INT column that contains the bucket of each row, out of `buckets` buckets.

    A row whose key is NULL or cannot be converted gets an arbitrary bucket. Writing the row reports
    the error.
    """
    fields = view.bucket_fields
    if view.bucket_function != "default" or not _are_whole_numbers(fields, rows.schema):
        return rows.select("*", _by_udf(fields, view, buckets).alias(name))
    kept = [quoted(column) for column in rows.columns]
    steps, bucket = _murmur3_modulo(_words(fields), buckets)
    if knows_aliases(rows.sparkSession):
        stepped = rows.selectExpr(*kept, *steps)
    else:  # one query per step, which takes twice as long to plan
        stepped = reduce(lambda made, step: made.selectExpr("*", step), steps, rows)
    return stepped.selectExpr(*kept, f"{bucket} AS {name}")


# -- by SQL ----------------------------------------------------------------------------------------

_SLOT_MASKS = {"TINYINT": 0xFF, "SMALLINT": 0xFFFF, "INT": 0xFFFF_FFFF}
_ZERO = "0L"


def _are_whole_numbers(fields: Sequence[Field], rows: StructType) -> bool:
    roots = {f.type.root for f in fields}
    return roots <= {*_SLOT_MASKS, "BIGINT"} and all(
        isinstance(rows[f.name].dataType, IntegralType) for f in fields
    )


def _value(field: Field) -> str:
    return f"coalesce(CAST({quoted(field.name)} AS BIGINT), {_ZERO})"


def _words(fields: Sequence[Field]) -> list[str]:
    """The 4-byte words of the binary row of some columns, each as a BIGINT from 0 to 2^32 - 1."""
    words = [_ZERO] * (header_size_bytes(len(fields)) // 4)
    for field in fields:
        mask = _SLOT_MASKS.get(field.type.root)
        if mask is None:
            words += [_low_half(_value(field)), f"shiftrightunsigned({_value(field)}, 32)"]
        else:
            words += [f"({_value(field)} & {mask}L)", _ZERO]
    return words


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


# -- by Python -------------------------------------------------------------------------------------


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
