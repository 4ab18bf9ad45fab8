"""Text is UTF-8 wherever a column holds some; what is not is refused before anything is written."""

from __future__ import annotations

import tempfile
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from new_tables import fields_of

HALF = "\ud800"

# Where a column can hold text: its type, the Arrow type with bytes in place of text, and how a
# text becomes a value.
PLACES: dict[str, tuple[pa.DataType, Any]] = {
    "STRING": (pa.binary(), lambda text: text),
    "VARCHAR(9)": (pa.binary(), lambda text: text),
    "ARRAY<STRING>": (pa.list_(pa.binary()), lambda text: [b"a", text]),
    "MAP<STRING, INT>": (pa.map_(pa.binary(), pa.int32()), lambda text: [(text, 1)]),
    "MAP<INT, STRING>": (pa.map_(pa.int32(), pa.binary()), lambda text: [(1, b""), (2, text)]),
    "ROW<n INT, s STRING>": (
        pa.struct([("n", pa.int32()), ("s", pa.binary())]),
        lambda text: {"n": 1, "s": text},
    ),
    "ARRAY<ROW<s STRING>>": (
        pa.list_(pa.struct([("s", pa.binary())])),
        lambda text: [{"s": text}, None],
    ),
}
ENCODINGS = [
    lambda a: a,
    lambda a: a.cast(pa.large_string()),
    lambda a: a.cast(pa.string_view()),
    lambda a: a.dictionary_encode(),
    lambda a: pa.chunked_array([a.slice(0, 1), a.slice(1)], a.type),
]


def as_text(kind: pa.DataType) -> pa.DataType:
    """A type with text in place of bytes."""
    if pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_map(kind):
        return pa.map_(as_text(kind.key_type), as_text(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(member.name, as_text(member.type)) for member in kind])
    return kind


def is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def new_table(**columns: str) -> kt.Table:
    lake = kt.connect(tempfile.mkdtemp())
    fields = fields_of(columns)
    return lake.create_table("t", fields, ["k"])


BYTES = st.one_of(st.sampled_from([b"", b"a", "ü".encode(), b"\xff", b"\xed\xa0\x80", b"\0"]))


@given(
    st.sampled_from(sorted(PLACES)),
    st.lists(st.none() | BYTES, min_size=2, max_size=6),
    st.sampled_from(ENCODINGS),
)
def test_text_is_written_exactly_or_refused_with_its_row(
    place: str, texts: list[bytes | None], encode: Any
) -> None:
    stored, value_of = PLACES[place]
    values = pa.array([None if t is None else value_of(t) for t in texts], stored)
    column = values.view(as_text(stored))
    rows = {"k": list(range(len(texts))), "v": encode(column) if "<" not in place else column}
    table = new_table(k="INT", v=place)
    wrong = [i for i, text in enumerate(texts) if text is not None and not is_utf8(text)]
    if not wrong:
        table.write(pa.table(rows))
        found = pl.DataFrame(table.scan().to_arrow()).sort("k").to_arrow()["v"]
        assert found.to_pylist() == column.to_pylist()
        return
    message = rf"column 'v' is .*not UTF-8 in row {wrong[0] + 1} of {len(texts)}"
    with pytest.raises(kt.InvalidError, match=message):
        table.write(pa.table(rows))
    assert table.snapshots() == []


def test_values_that_a_slice_hides_are_not_looked_at() -> None:
    values = pa.array([b"\xff", b"a"]).view(pa.string())
    table = new_table(k="STRING")
    table.write(pa.table({"k": values}).slice(1))
    assert table.scan().to_pylist() == [{"k": "a"}]


@pytest.mark.parametrize("column", ["k", "_row_kind"])
def test_key_and_row_kind_are_text_too(column: str) -> None:
    values = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(kt.InvalidError, match=rf"xff.*column '{column}'|column '{column}'.*xff"):
        new_table(k="STRING").write(pa.table({"k": ["a"], "_row_kind": ["+I"], column: values}))


@pytest.mark.parametrize("rows", [[{"k": HALF}], pl.DataFrame, "pandas"])
def test_half_of_a_character_is_refused_in_every_container(rows: Any) -> None:
    table = new_table(k="STRING")
    if rows == "pandas":
        rows = pytest.importorskip("pandas").DataFrame({"k": [HALF]})
    elif rows is pl.DataFrame:
        rows = pl.DataFrame({"k": pl.Series([b"\xff"]).to_arrow().view(pa.large_string())})
    with pytest.raises(kt.InvalidError, match=r"'k'|surrogates"):
        table.write(rows)


def test_half_of_a_character_is_refused_in_names_options_and_comments() -> None:
    lake = kt.connect(tempfile.mkdtemp())
    fields = fields_of("k INT")
    for name, key, comment in ((HALF, "k", None), ("t", HALF, None), ("t", "k", HALF)):
        with pytest.raises(kt.InvalidError, match="half of a character"):
            lake.create_table(name, fields, [key], comment=comment)
    with pytest.raises(kt.InvalidError, match="half of a character"):
        kt.Field(-1, HALF, kt.parse_sql_type("INT"))
    assert lake.tables() == []
