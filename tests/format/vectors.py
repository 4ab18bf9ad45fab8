"""Golden vectors of the format, and random columns of every scalar type.

Values of the vectors are text: decimal numbers, hex for bytes, ISO dates and times.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from keytide.types import STRING, AtomicType, DataType

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "golden.json").read_text()
)


def column_of(text: str | None, kind: DataType) -> pa.Array:
    """The column with one value, given as a vector's text."""
    target = kind.to_arrow()
    if text is None:
        return pa.nulls(1, target)
    return _PARSE[kind.root](text, target)


def columns_of(vector: dict[str, Any], types: list[DataType]) -> list[pa.Array]:
    return [column_of(text, kind) for text, kind in zip(vector["values"], types, strict=True)]


def _plain(convert: Callable[[str], Any]) -> Callable[[str, pa.DataType], pa.Array]:
    return lambda text, target: pa.array([convert(text)], target)


def _decimal(text: str, target: pa.DataType) -> pa.Array:
    # From bytes, because Arrow refuses the one vector that exceeds its precision.
    unscaled = int(text.replace(".", "")).to_bytes(16, "little", signed=True)
    return pa.Array.from_buffers(target, 1, [None, pa.py_buffer(unscaled)])


def _temporal(text: str, target: pa.DataType) -> pa.Array:
    if pa.types.is_date(target):
        return pa.array([int(np.datetime64(text, "D").astype(int))], pa.int32()).view(target)
    if pa.types.is_time(target):
        millis = int(np.datetime64(f"1970-01-01T{text}", "ms").astype(int))
        return pa.array([millis], pa.int32()).view(target)
    return pa.array([int(np.datetime64(text, target.unit).astype(int))]).view(target)


_PARSE: dict[str, Callable[[str, pa.DataType], pa.Array]] = {
    "BOOLEAN": _plain("true".__eq__),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), _plain(int)),
    **dict.fromkeys(("FLOAT", "DOUBLE"), _plain(float)),
    **dict.fromkeys(("CHAR", "VARCHAR"), _plain(str)),
    **dict.fromkeys(("BINARY", "VARBINARY"), _plain(bytes.fromhex)),
    "DECIMAL": _decimal,
    **dict.fromkeys(("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ"), _temporal),
}


# --- random columns ----------------------------------------------------------------------------


def scalar_types() -> st.SearchStrategy[AtomicType]:
    plain = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE"]
    sized = ["CHAR", "VARCHAR", "BINARY", "VARBINARY"]
    timed = ["TIME", "TIMESTAMP", "TIMESTAMP_LTZ"]
    return st.one_of(
        st.builds(AtomicType, st.sampled_from(plain)),
        st.just(STRING),
        st.builds(AtomicType, st.sampled_from(sized), length=st.just(2147483647)),
        st.builds(AtomicType, st.sampled_from(timed), precision=st.integers(0, 9)),
        decimal_types(),
    )


@st.composite
def decimal_types(draw: st.DrawFn) -> AtomicType:
    precision = draw(st.integers(1, 38))
    return AtomicType("DECIMAL", precision=precision, scale=draw(st.integers(0, precision)))


@st.composite
def columns_of_equal_length(
    draw: st.DrawFn, types: st.SearchStrategy[AtomicType] | None = None
) -> tuple[list[pa.Array], list[DataType]]:
    kinds = draw(st.lists(types or scalar_types(), min_size=1, max_size=5))
    size = draw(st.integers(0, 6))
    return [draw(columns(kind, size)) for kind in kinds], list(kinds)


def columns(kind: AtomicType, size: int) -> st.SearchStrategy[pa.Array]:
    """Columns of ``size`` values, as slices of longer ones, so that offsets matter."""
    values = st.lists(st.none() | _values(kind), min_size=size + 1, max_size=size + 1)
    return values.map(lambda drawn: _array(drawn, kind.to_arrow()).slice(1))


def _array(values: list[Any], target: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(target):
        carrier = pa.int32() if target.bit_width == 32 else pa.int64()
        return pa.array(values, carrier).view(target)
    return pa.array(values, target)


def _values(kind: AtomicType) -> st.SearchStrategy[Any]:
    if kind.root == "BOOLEAN":
        return st.booleans()
    if kind.root in ("FLOAT", "DOUBLE"):
        return st.floats(width=32 if kind.root == "FLOAT" else 64, allow_nan=False)
    if kind.root in ("CHAR", "VARCHAR"):
        return st.text(max_size=20)
    if kind.root in ("BINARY", "VARBINARY"):
        return st.binary(max_size=40)
    if kind.root == "DECIMAL":
        return _decimals(kind)
    if kind.root == "TIME":
        return st.integers(0, 86_399_999)
    bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "DATE": 32, "BIGINT": 64}.get(kind.root, 63)
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _decimals(kind: AtomicType) -> st.SearchStrategy[Decimal]:
    assert kind.precision is not None
    assert kind.scale is not None
    limit, scale = 10**kind.precision - 1, kind.scale

    def scaled(unscaled: int) -> Decimal:
        with localcontext() as context:
            context.prec = 40
            return Decimal(unscaled).scaleb(-scale)

    return st.integers(-limit, limit).map(scaled)
