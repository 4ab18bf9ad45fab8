"""The same rows in Parquet, ORC and Avro files read equal, whatever part of them is read."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from avro_files import avro_bytes, has_avro_type
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.format.arrow import polars_schema
from keytide.format.data_file import FORMATS, FileReader, physical_schema
from keytide.format.data_file.reader import format_name
from keytide.format.schema import TableSchema
from keytide.store import Store, open_store
from keytide.types import Field
from type_values import ALL, column_of, cycled, kind_of

ROW_COUNT = 40
_FIRST_NS, _LAST_NS = -(2**63), 2**63 - 1


def within_nanoseconds(values: list[Any], text: str) -> list[Any]:
    """The values, with other times where ORC files cannot hold them."""
    if "TIMESTAMP" not in text:
        return values
    precision = int(text.split("TIMESTAMP(")[1][0])
    unit = 10**6 if precision <= 3 else 10**3 if precision <= 6 else 1

    def held(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(held, value))
        if isinstance(value, dict):
            return {name: held(member) for name, member in value.items()}
        if isinstance(value, int) and not is_in_orc(value * unit):
            return 1
        return value

    return [held(value) for value in values]


def is_in_orc(nanoseconds: int) -> bool:
    """Whether it is a time that ORC files can hold."""
    is_whole = nanoseconds >= 0 or nanoseconds % 10**9 == 0
    return is_whole and _FIRST_NS <= nanoseconds <= _LAST_NS


VALUES = {text: within_nanoseconds(values, text) for text, values in ALL.items()}
FIELDS = tuple(Field(i, f"c{i}", kind_of(text)) for i, text in enumerate(["INT", *VALUES]))
TEXTS = dict(zip([f.name for f in FIELDS[1:]], VALUES, strict=True))
COLUMNS = {
    "c0": list(range(ROW_COUNT)),
    **{name: cycled(VALUES[text], ROW_COUNT) for name, text in TEXTS.items()},
}


def schema_of(fields: tuple[Field, ...]) -> TableSchema:
    return TableSchema(0, fields, highest_field_id=len(fields))


def file_bytes(file_format: str, fields: tuple[Field, ...]) -> bytes:
    if file_format == "avro":
        return avro_bytes(fields, COLUMNS, block_bytes=300)
    return own_bytes(file_format, fields)


def own_bytes(file_format: str, fields: tuple[Field, ...]) -> bytes:
    """A file as it is written here."""
    arrays = [column_of(COLUMNS[f.name], f.type) for f in fields]
    rows = pa.Table.from_arrays(arrays, schema=physical_schema(schema_of(fields)))
    buffer = io.BytesIO()
    FORMATS[file_format].write(buffer, rows, "zstd", 1, {})
    data: bytes = buffer.getvalue()
    return data


def fields_in(file_format: str) -> tuple[Field, ...]:
    """The columns whose types the format has."""
    return tuple(f for f in FIELDS if file_format != "avro" or has_avro_type(f.type))


@pytest.fixture(scope="module")
def store() -> Store:
    """A store with the rows in a file of each format."""
    found = open_store("memory://formats")
    for name in FORMATS:
        found.put(f"data.{name}", file_bytes(name, fields_in(name)))
    return found


def reader(store: Store, file_format: str, fields: tuple[Field, ...]) -> FileReader:
    schema = schema_of(fields_in(file_format))
    return FileReader(store, f"data.{file_format}", schema, fields)


def expected(fields: tuple[Field, ...]) -> pl.DataFrame:
    arrays = {f.name: column_of(COLUMNS[f.name], f.type) for f in fields}
    frame = pl.from_arrow(pa.table(arrays))
    assert isinstance(frame, pl.DataFrame)
    return frame.cast(polars_schema(fields))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("file_format", FORMATS)
def test_every_type_reads_as_it_was_written(store: Store, file_format: str) -> None:
    fields = fields_in(file_format)
    for field in fields:
        found = reader(store, file_format, (field,)).read()
        assert found.schema == polars_schema((field,))
        assert found.equals(expected((field,)), null_equal=True), field.type.sql()
    assert reader(store, file_format, fields).read().equals(expected(fields), null_equal=True)


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("offset", [1, 2, 9])
def test_rows_cut_out_of_others_are_written_as_they_are(file_format: str, offset: int) -> None:
    store, fields = open_store("memory://cut"), fields_in(file_format)
    arrays = [column_of(COLUMNS[f.name], f.type) for f in fields]
    rows = pa.Table.from_arrays(arrays, schema=physical_schema(schema_of(fields)))
    buffer = io.BytesIO()
    FORMATS[file_format].write(buffer, rows.slice(offset, 20), "zstd", 1, {})
    store.put(f"data.{file_format}", buffer.getvalue())
    found, wanted = reader(store, file_format, fields).read(), expected(fields).slice(offset, 20)
    for name in wanted.columns:
        assert found[name].equals(wanted[name], null_equal=True), (name, TEXTS.get(name))


def test_avro_files_have_the_types_and_values_of_those_of_java() -> None:
    fields = fields_in("avro")
    own, other = (
        fastavro.reader(io.BytesIO(data))
        for data in (own_bytes("avro", fields), avro_bytes(fields, COLUMNS))
    )
    for one, two in zip(own.writer_schema["fields"], other.writer_schema["fields"], strict=True):
        assert unnamed(one) == unnamed(two), TEXTS.get(one["name"])
        assert isinstance(one["type"], list) == isinstance(two["type"], list)
        assert not isinstance(one["type"], list) or one["type"][0] == "null"
    for row, wanted in zip(own, other, strict=True):
        assert str(row) == str(wanted)


def unnamed(node: Any) -> Any:
    """A type without the names of records, and without telling what in it may be NULL."""
    if isinstance(node, list):
        known = [unnamed(one) for one in node if one != "null"]
        return known[0] if "null" in node else known
    if not isinstance(node, dict):
        return node
    is_record = node.get("type") == "record"
    return {k: unnamed(v) for k, v in node.items() if not (is_record and k == "name")}


def test_table_in_avro_is_changed_compacted_and_followed_into_parquet(warehouse: str) -> None:
    schema = pa.schema({"k": pa.int64(), "v": pa.map_(pa.string(), pa.int32())})
    options = {"bucket": "1", "file.format": "avro", "changelog-producer": "lookup"}
    table = kt.connect(warehouse).create_table("t", schema, ["k"], options=options)
    for n in range(3):
        table.write([{"k": k, "v": {"n": n}} for k in range(n, n + 4)])
    table.delete("k = 1")
    model = {0: 0, 2: 2, 3: 2, 4: 2, 5: 2}
    rows = [{"k": k, "v": [("n", n)]} for k, n in model.items()]
    assert sorted(table.scan().to_pylist(), key=str) == sorted(rows, key=str)
    entries = table.scan().live.entries
    assert {entry.file.file_name.rsplit(".", 1)[-1] for entry in entries} == {"avro"}
    assert [*Path(table.uri).glob("bucket-0/changelog-*.avro")]
    kinds = table.changes(3, mode="changelog").to_arrow()["_row_kind"].to_pylist()
    assert kinds.count("-D") == 1
    table.alter(SetOption("file.format", "parquet"))
    table.compact(full=True)
    assert sorted(table.scan().to_pylist(), key=str) == sorted(rows, key=str)
    assert table.scan().live.entries[0].file.file_name.endswith(".parquet")


@pytest.mark.parametrize(
    ("sql_type", "name", "message"),
    [("TIMESTAMP(9)", "v", "support nanoseconds"), ("INT", "a b", "the name 'a b'"),
     ("ROW<é INT>", "v", "the name 'é'")],
)  # fmt: skip
def test_avro_files_refuse_columns_that_they_have_not(
    warehouse: str, sql_type: str, name: str, message: str
) -> None:
    fields = [Field(-1, "k", kind_of("INT")), Field(-1, name, kind_of(sql_type))]
    with pytest.raises(kt.InvalidError, match=rf"'{name}'.*{message}.*'parquet'"):
        kt.connect(warehouse).create_table("t", fields, ["k"], options={"file.format": "avro"})


@pytest.mark.parametrize("file_format", FORMATS)
@given(data=st.data())
def test_any_rows_of_any_columns_read_as_those_of_the_whole(
    store: Store, file_format: str, data: st.DataObject
) -> None:
    picked = data.draw(st.lists(st.sampled_from(fields_in(file_format)), unique=True, max_size=3))
    fields = (FIELDS[0], *(f for f in picked if f.name != "c0"))
    offset = data.draw(st.integers(0, ROW_COUNT))
    length = data.draw(st.none() | st.integers(1, ROW_COUNT))
    found = reader(store, file_format, fields).read(offset, length)
    assert found.equals(expected(fields).slice(offset, length), null_equal=True)


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("rows_max", [1, 7, 1000])
def test_spans_cover_a_file_of_any_format(store: Store, file_format: str, rows_max: int) -> None:
    one = reader(store, file_format, FIELDS[:2])
    spans = one.spans(rows_max)
    assert all(length is not None and 0 < length <= rows_max for _, length in spans)
    starts = list(itertools.accumulate((length or 0 for _, length in spans), initial=0))
    assert [start for start, _ in spans] == starts[:-1]
    assert starts[-1] == ROW_COUNT
    parts = pl.concat([one.read(*span) for span in spans])
    assert parts.equals(expected(FIELDS[:2]), null_equal=True)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard"])
def test_avro_of_any_codec_is_read(store: Store, codec: str) -> None:
    fields = fields_in("avro")
    store.put("coded.avro", avro_bytes(fields, COLUMNS, codec, block_bytes=300))
    coded = FileReader(store, "coded.avro", schema_of(fields), fields)
    assert coded.read().equals(expected(fields), null_equal=True)


@pytest.mark.parametrize("file_format", ["orc", "avro"])
def test_torn_file_is_an_error_that_names_it(store: Store, file_format: str) -> None:
    data = store.read(f"data.{file_format}")
    between_blocks = [i for i in range(len(data)) if data[i - 16 : i] == data[-16:]]
    path, schema = f"torn.{file_format}", schema_of(fields_in(file_format))
    for end in (*range(0, len(data), 97), *between_blocks):
        store.put(path, data[:end])
        torn = FileReader(store, path, schema, FIELDS[:2], size=len(data))
        if end < len(data):
            with pytest.raises(kt.DataError, match=path):
                torn.read()
        else:
            assert torn.read().height == ROW_COUNT


@pytest.mark.parametrize(
    ("text", "value", "what"),
    [
        ("TIMESTAMP(3)", -62_135_596_800_000, "before 1678"),
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE", 10**16, "after 2262"),
        ("TIMESTAMP(3)", -1, "fractions of a second"),
        (
            "ARRAY<ROW<t TIMESTAMP(9), n INT>>",
            [{"t": 1, "n": -1}, {"t": -1, "n": None}],
            "fractions",
        ),
        ("MAP<INT, ARRAY<TIMESTAMP(3)>>", [(-1, [10**15])], "after 2262"),
        ("MAP<TIMESTAMP(6), INT>", [(-1, 5)], "fractions"),
    ],
)
def test_times_that_orc_cannot_hold_are_refused_at_any_depth(
    warehouse: str, text: str, value: Any, what: str
) -> None:
    fields = [Field(-1, "k", kind_of("INT")), Field(-1, "v", kind_of(text))]
    table = kt.connect(warehouse).create_table("t", fields, ["k"], options={"file.format": "orc"})
    rows = pa.table({"k": [1, 2, 3], "v": column_of([None, value, None], kind_of(text))})
    with pytest.raises(kt.InvalidError, match=f"column 'v': ORC .*{what}.*'file.format'"):
        table.write(rows)
    assert table.snapshots() == []
    assert table.write(rows.take([0, 2])).rows == 2


def test_missing_column_is_null_in_every_format(store: Store) -> None:
    new = Field(999, "new", kind_of("BIGINT"))
    for file_format in FORMATS:
        found = reader(store, file_format, (FIELDS[0], new)).read()
        assert found["new"].null_count() == ROW_COUNT


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/data-1.parquet", "parquet"), ("b.avro/x.zstd.orc", "orc"), ("data.avro.gz", "avro"),
     ("a/data-1.lance", "lance"), ("a.orc/data", "")],
)  # fmt: skip
def test_extension_tells_the_format(path: str, name: str) -> None:
    assert format_name(path) == name
