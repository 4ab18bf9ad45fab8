"""What cannot work is refused with a clear message, and nothing is lost or left half done."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.store import open_store
from keytide.store.faults import FaultyStore
from new_tables import fields_of
from table_rows import rows

BASE = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("d", pa.bool_()), ("v", pa.string())])


def files_below(lake: kt.Lake) -> list[str]:
    return sorted(str(p.relative_to(lake.uri)) for p in Path(lake.uri).rglob("*") if p.is_file())


def new_table(lake: kt.Lake, kind: str) -> kt.Table:
    """A table of a key `k` and one column `v` of that type."""
    types = {"k": "INT", "v": kind}
    fields = fields_of(types)
    return lake.create_table("t", fields, ["k"])


def test_retracts_that_a_partial_update_cannot_use_are_refused_before_anything_is_written(
    lake: kt.Lake,
) -> None:
    table = lake.create_table("t", BASE, ["k"], options={"merge-engine": "partial-update"})
    before = files_below(lake)
    row = {"k": 1, "w": 1, "d": True, "v": "a"}
    message = r"default\.t: 1 of 2 rows cannot be merged, .* k = 2: .*ignore-delete"
    with pytest.raises(kt.InvalidError, match=message):
        table.write([{**row, "_row_kind": "+I"}, {**row, "k": 2, "_row_kind": "-D"}])
    assert files_below(lake) == before
    table.write([{**row, "_row_kind": "+I"}])


# -- names -----------------------------------------------------------------------------------------


def test_unknown_table_is_refused_naming_those_there_are(lake: kt.Lake) -> None:
    lake.create_table("shop.orders", BASE, ["k"])
    with pytest.raises(
        kt.NotFoundError, match=r"table shop\.order does not exist in .*: shop\.orders"
    ):
        lake.table("shop.order")
    with pytest.raises(kt.NotFoundError, match=r"shop\.orders"):
        lake.drop_table("shop.order")
    with pytest.raises(kt.NotFoundError, match="default"):
        lake.table("orders")
    with pytest.raises(kt.NotFoundError, match="does not exist"):
        kt.open_table(Path(lake.uri) / "shop.db/order")
    assert lake.tables() == ["shop.orders"]


@pytest.mark.parametrize("name", ["", "a.b.c", "a/b", ".t", "t."])
def test_name_that_is_no_table_name_is_refused(lake: kt.Lake, name: str) -> None:
    with pytest.raises(kt.InvalidError, match="is not a valid table name"):
        lake.create_table(name, BASE, ["k"])
    assert lake.tables() == []


@pytest.mark.parametrize(
    ("primary_key", "partition_by", "message"),
    [(["id", "dt"], [], "primary key"), (["dt", "id"], ["dt"], "primary key")],
)
def test_keys_of_a_table_that_exists_cannot_be_changed(
    lake: kt.Lake, primary_key: list[str], partition_by: list[str], message: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("dt", pa.string())])
    lake.create_table("keyed", schema, ["id"])

    with pytest.raises(kt.InvalidError, match=message):
        lake.create_table("keyed", schema, primary_key, partition_by, exists_ok=True)

    assert lake.create_table("keyed", schema, ["id"], exists_ok=True).primary_key == ("id",)


def test_existing_table_is_not_made_again(lake: kt.Lake) -> None:
    lake.create_table("t", BASE, ["k"]).write([{"k": 1, "w": 1, "d": None, "v": "a"}])
    with pytest.raises(kt.AlreadyExistsError, match=r"default\.t already exists"):
        lake.create_table("t", BASE, ["k"])
    lake.create_table("t", BASE, ["k"], exists_ok=True)
    assert rows(lake.table("t")) == [(1, 1, None, "a")]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.scan(columns=["vv"]), r"no column 'vv'; columns: k, w, d, v"),
        (lambda t: t.scan(where="vv = 1"), r"no column 'vv'; columns: k, w, d, v"),
        (lambda t: t.write([{"k": 1, "vv": 2}]), r"no column 'vv'; columns: k"),
        (lambda t: t.scan(snapshot_id=9), r"no snapshot 9; snapshots 1 to 1 exist"),
        (lambda t: t.scan(snapshot_id=-1), r"no snapshot -1; .*\. Snapshot ids start with 1"),
        (lambda t: t.scan(tag="x"), r"no tag 'x'; existing tags: none"),
        (
            lambda t: t.scan(as_of=0),
            r"no snapshot at or before 1970-01-01 00:00:00.000Z; the oldest one is from 2",
        ),
    ],
)
def test_unknown_column_snapshot_or_tag_is_refused_naming_those_there_are(
    lake: kt.Lake, act: Callable[[kt.Table], object], message: str
) -> None:
    table = lake.create_table("t", BASE, ["k"])
    table.write([{"k": 1, "w": 1, "d": None, "v": "a"}])
    with pytest.raises(kt.NotFoundError, match=message):
        act(table)
    assert rows(table) == [(1, 1, None, "a")]


OF_SNAPSHOTS: dict[str, Callable[[kt.Table, int], object]] = {
    "scan": lambda t, number: t.scan(snapshot_id=number),
    "why": lambda t, number: t.why(1, snapshot_id=number),
    "changes from": lambda t, number: t.changes(number),
    "changes to": lambda t, number: t.changes(0, number),
    "follow": lambda t, number: t.follow(number),
    "create_tag": lambda t, number: t.create_tag("a", number),
    "replace_tag": lambda t, number: t.replace_tag("old", number),
    "create_branch": lambda t, number: t.create_branch("a", number),
    "rollback_to": lambda t, number: t.rollback_to(number),
    "restore": lambda t, number: t.restore(number),
    "reset_consumer": lambda t, number: t.reset_consumer("reader", number),
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("number", [-1, -(2**63), 2**63, 10**30])
@pytest.mark.parametrize("act", OF_SNAPSHOTS.values(), ids=OF_SNAPSHOTS)
def test_what_is_no_number_of_a_snapshot_is_refused_as_one(
    lake: kt.Lake, act: Callable[[kt.Table, int], object], number: int
) -> None:
    table = lake.create_table("t", BASE, ["k"])
    table.write([{"k": 1, "w": 1, "d": None, "v": "a"}])
    table.create_tag("old")
    list(table.follow(consumer="reader", timeout_seconds=0))
    with pytest.raises((kt.NotFoundError, kt.InvalidError)) as refusal:
        act(table, number)
    assert re.search("snapshot|start is|expected a 64-bit integer", str(refusal.value))
    assert "file name" not in str(refusal.value)


@pytest.mark.parametrize(
    "where", ["year(w) = 1", "w > now()", "k IN (f(1))", "NOT (abs(k) = 1)", "k BETWEEN f(1) AND 3"]
)
def test_function_in_a_condition_is_named_with_the_way_out(lake: kt.Lake, where: str) -> None:
    table = lake.create_table("t", BASE, ["k"])
    message = (
        r"the condition calls (year|now|f|abs)\(\.\.\.\).*TIMESTAMP .*or query the table in SQL"
    )
    with pytest.raises(kt.InvalidError, match=message):
        table.scan(where=where)


def test_lake_that_is_not_there_is_refused_until_a_table_makes_it(tmp_path: Path) -> None:
    lake = kt.connect(tmp_path / "typo")
    asks: list[Callable[[], object]] = [
        lake.tables,
        lambda: lake.table("t"),
        lambda: lake.sql("SHOW TABLES"),
        lambda: lake.sql("SHOW DATABASES"),
    ]
    for ask in asks:
        with pytest.raises(
            kt.NotFoundError, match="typo does not exist; check the path, or create"
        ):
            ask()
    assert "<ul></ul>" in lake._repr_html_()
    lake.create_table("t", BASE, ["k"])
    assert lake.tables() == ["default.t"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.scan(where="k ="), "cannot be parsed"),
        (lambda t: t.scan(where="k = 'x'"), "compares column k of type BIGINT"),
        (lambda t: t.scan(where="k = w"), "compare a column with a literal"),
        (lambda t: t.scan(where="k = NULL"), "IS NULL"),
        (lambda t: t.scan(columns=["k", "k"]), "each only once"),
        (lambda t: t.scan(columns=[]), "at least one column"),
        (lambda t: t.scan(snapshot_id=1, tag="x"), "snapshot_id and tag"),
        (lambda t: t.scan(as_of="yesterday"), "not an ISO time"),
        (lambda t: t.scan(as_of=1.5), "as_of is 1.5"),
        (lambda t: t.get((1, 2)), r"primary key is k, found 2 value"),
        (lambda t: t.get({"w": 1}), r"primary key is k, found w"),
        (lambda t: t.get("x"), "key column 'k' is BIGINT NOT NULL, found 'x'"),
        (lambda t: t.write("rows"), r"cannot write a builtins\.str"),
        (lambda t: t.write(1), r"cannot write a builtins\.int"),
    ],
)
def test_wrong_argument_is_refused_naming_what_was_expected(
    lake: kt.Lake, act: Callable[[kt.Table], object], message: str
) -> None:
    table = lake.create_table("t", BASE, ["k"])
    before = files_below(lake)
    with pytest.raises(kt.InvalidError, match=message):
        act(table)
    assert files_below(lake) == before


# -- definitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckett": "2"}, r"unknown option 'buckett'; did you mean 'bucket'"),
        ({"merge.engine": "x"}, r"unknown option 'merge\.engine'; did you mean 'merge-engine'"),
        ({"zzz": "x"}, r"unknown option 'zzz'"),
        ({"bucket": 2}, r"option 'bucket' has the value 2 of type int; .* for example '2'"),
        ({"bucket": "0"}, "a table has at least 1 bucket"),
        ({"bucket": "-3"}, "a table has at least 1 bucket"),
        ({"bucket": "two"}, r"'bucket' has the value 'two'; expected an integer"),
        ({"target-file-size": "big"}, r"'target-file-size' has .*'big'; expected a size"),
        ({"read.memory": "-1"}, r"'read\.memory' has .*'-1'; expected a size"),
        ({"commit.max-retries": "-1"}, r"expected an integer from 0"),
        ({"commit.min-retry-wait": "soon"}, r"expected a duration"),
        ({"file.compression": "brotli"}, r"expected one of zstd, snappy"),
        ({"merge-engine": "magic"}, r"expected one of deduplicate"),
        ({"metadata.stats-mode": "truncate(0)"}, r"expected none, counts, full or truncate"),
        ({"ignore-delete": "yes"}, r"expected 'true' or 'false'"),
        ({"sequence.field": "x"}, r"x"),
        ({"watermark.key": "x"}, r"'watermark\.key' names column 'x'"),
        ({"watermark.key": "w", "tombstone.key": "x"}, r"'tombstone\.key' names column 'x'"),
        ({"watermark.key": "n"}, r"'n' is a nested ARRAY"),
        ({"watermark.key": "w", "tombstone.key": "n"}, r"'n' is a nested ARRAY"),
        ({"watermark.key": "w", "tombstone.key": "d,v"}, r"names 2 columns \(d, v\)"),
        ({"watermark.key": "w,d", "tombstone.key": "d"}, r"both watermark key and tombstone key"),
        ({"watermark.key": "k"}, r"'k', which is in the primary key"),
        ({"watermark.key": "w", "tombstone.key": "k"}, r"'k', which is in the primary key"),
        ({"watermark.key": "w", "sequence.field": "v"}, r"so give only one"),
        ({"watermark.key": "w", "tombstone.key": "d", "tombstone.string-key-value": "D"},
         r"requires a string column"),
        ({"tombstone.string-key-value": "D"}, r"requires a 'tombstone\.key'"),
    ],
)  # fmt: skip
def test_option_that_cannot_work_is_refused_and_no_table_is_made(
    lake: kt.Lake, options: dict[str, Any], message: str
) -> None:
    schema = BASE.append(pa.field("n", pa.list_(pa.int32())))
    with pytest.raises(kt.InvalidError, match=message):
        lake.create_table("t", schema, ["k"], options=options)
    assert files_below(lake) == []


@pytest.mark.parametrize(
    ("schema", "primary_key", "partition_by", "message"),
    [
        (BASE, ["x"], [], r"do not exist: \[x\]"),
        (BASE, ["k", "k"], [], r"duplicate names: \[k\]"),
        (BASE, ["k"], ["x"], r"do not exist: \[x\]"),
        (BASE, ["k"], ["k"], "consists of partition columns only"),
        (BASE, "k", [], r"primary_key is 'k' .*expected a list of strings, such as \['k'\]"),
        (BASE.append(pa.field("k", pa.string())), ["k"], [], r"duplicate names: \[k\]"),
        (BASE.append(pa.field("_row_kind", pa.string())), ["k"], [], "is reserved for row kinds"),
        (BASE.append(pa.field("_VALUE_KIND", pa.int8())), ["k"], [], "reserved"),
        (BASE.append(pa.field("x", pa.null())), ["k"], [], "column 'x'"),
        (BASE.append(pa.field("x", pa.duration("s"))), ["k"], [], "column 'x'"),
        (pa.schema([]), ["k"], [], "at least one column"),
    ],
)
def test_definition_that_cannot_work_is_refused_and_no_table_is_made(
    lake: kt.Lake, schema: pa.Schema, primary_key: Any, partition_by: list[str], message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        lake.create_table("t", schema, primary_key, partition_by)
    assert files_below(lake) == []


def test_layouts_that_this_release_cannot_keep_are_refused(lake: kt.Lake) -> None:
    beside = {"bucket": "-1", "index-file-in-data-file-dir": "true"}
    with pytest.raises(kt.UnsupportedError, match="stores the dynamic bucket index next"):
        lake.create_table("t", BASE, ["k"], options=beside)
    with pytest.raises(kt.UnsupportedError, match="in two partitions"):
        lake.create_table("t", BASE, ["k"], ["w"])
    assert files_below(lake) == []


# -- rows ------------------------------------------------------------------------------------------

GOOD = {"k": 1, "w": 1, "d": None, "v": "a"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"w": 1, "d": None, "v": "a"}], r"lack the primary key column 'k' \(BIGINT NOT NULL\)"),
        ([{"k": 1, "w": 1}], r"lack the column 'd' \(BOOLEAN\)"),
        ([GOOD, {**GOOD, "k": None}], r"'k' is BIGINT NOT NULL and 1 of 2 rows are NULL"),
        (pa.table([[1], [2]], names=["k", "k"]), r"two columns named 'k'"),
        ([{**GOOD, "_row_kind": "+X"}], r"Unsupported short string '\+X'.*expected '\+I'"),
        ([{**GOOD, "_row_kind": ""}], r"Unsupported short string ''"),
        ([{**GOOD, "_row_kind": "DELETE"}], r"Unsupported short string 'DELETE'"),
        ([{**GOOD, "_row_kind": "-D"}, {**GOOD, "_row_kind": None}], r"Row kind cannot be null"),
        (pa.table({**{n: [x] for n, x in GOOD.items()}, "_row_kind": [3]}),
         r"row kinds and must be a string column, found int64"),
        ([{**GOOD, "_row_kind": "-D", "k": None}], r"'k' is BIGINT NOT NULL"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    lake: kt.Lake, data: Any, message: str
) -> None:
    table = lake.create_table("t", BASE, ["k"])
    table.write([GOOD])
    before = files_below(lake)
    with pytest.raises(kt.InvalidError, match=message):
        table.write(data)
    assert files_below(lake) == before


def test_rowkind_field_must_hold_known_kinds(lake: kt.Lake) -> None:
    table = lake.create_table("t", BASE, ["k"], options={"rowkind.field": "v"})
    before = files_below(lake)
    with pytest.raises(kt.InvalidError, match="Unsupported short string 'a'"):
        table.write([GOOD])
    with pytest.raises(kt.InvalidError, match="Row kind cannot be null"):
        table.write([{**GOOD, "v": None}])
    with pytest.raises(kt.InvalidError, match=r"have no column 'v', which 'rowkind\.field' names"):
        table.write([{"k": 1, "w": 1, "d": None}])
    assert files_below(lake) == before


INSTANT = pa.timestamp("us", tz="UTC")

LOSSY: list[tuple[str, pa.Array]] = [
    # whole numbers
    ("TINYINT", pa.array([128])),
    ("SMALLINT", pa.array([-40_000])),
    ("INT", pa.array([2**31])),
    ("INT", pa.array([1.5])),
    ("INT", pa.array(["1"])),
    ("INT", pa.array([True])),
    ("INT", pa.array([Decimal("1.0")])),
    ("BIGINT", pa.array([2**63], pa.uint64())),
    ("BIGINT", pa.array([date(2024, 1, 1)])),
    ("BIGINT", pa.array([b"1"])),
    # decimals
    ("DECIMAL(4, 2)", pa.array([Decimal("1.005")])),
    ("DECIMAL(4, 2)", pa.array([Decimal("100.00")])),
    ("DECIMAL(4, 2)", pa.array([100])),
    ("DECIMAL(4, 2)", pa.array([1.5])),
    ("DECIMAL(4, 2)", pa.array(["1.50"])),
    # floating point
    ("FLOAT", pa.array([0.1], pa.float64())),
    ("FLOAT", pa.array([1])),
    ("DOUBLE", pa.array([2**53 + 1])),
    ("DOUBLE", pa.array(["1"])),
    ("DOUBLE", pa.array([Decimal("0.1")])),
    # texts and bytes
    ("STRING", pa.array([1])),
    ("STRING", pa.array([b"\xff"])),
    ("STRING", pa.array([True])),
    ("VARCHAR(3)", pa.array(["abcd"])),
    ("CHAR(1)", pa.array(["äö"])),
    ("BYTES", pa.array(["text"])),
    ("VARBINARY(2)", pa.array([b"abc"])),
    ("BINARY(2)", pa.array([b"abc"])),
    # booleans
    ("BOOLEAN", pa.array([1])),
    ("BOOLEAN", pa.array(["true"])),
    # dates and times
    ("DATE", pa.array([datetime(2024, 1, 1, 12)])),
    ("DATE", pa.array(["2024-01-01"])),
    ("DATE", pa.array([19_000])),
    ("TIME(0)", pa.array([1], pa.time32("ms"))),
    ("TIME(3)", pa.array([time(12, 0, 0, 1)])),
    ("TIME(3)", pa.array([1])),
    ("TIMESTAMP(3)", pa.array([datetime(2024, 1, 1, 0, 0, 0, 1)])),
    ("TIMESTAMP(4)", pa.array([datetime(2024, 1, 1, 0, 0, 0, 1)])),
    ("TIMESTAMP(6)", pa.array([1], pa.timestamp("ns"))),
    ("TIMESTAMP(9)", pa.array([datetime(3000, 1, 1)])),
    ("TIMESTAMP(9)", pa.array([-(2**63)], pa.timestamp("ns"))),
    ("TIMESTAMP(6)", pa.array([datetime(2024, 1, 1)], INSTANT)),
    ("TIMESTAMP(6)", pa.array([date(2024, 1, 1)])),
    ("TIMESTAMP(6)", pa.array([0])),
    ("TIMESTAMP(6)", pa.array(["2024-01-01"])),
    ("TIMESTAMP(6) WITH LOCAL TIME ZONE", pa.array([datetime(2024, 1, 1)])),
    ("TIMESTAMP(3) WITH LOCAL TIME ZONE", pa.array([1], INSTANT)),
    # nested types
    ("ARRAY<INT>", pa.array([[2**31]])),
    ("ARRAY<INT>", pa.array([["1"]])),
    ("ARRAY<INT>", pa.array([1])),
    ("ARRAY<INT NOT NULL>", pa.array([[1, None]], pa.list_(pa.int32()))),
    ("ARRAY<DECIMAL(4, 2)>", pa.array([[Decimal("1.005")]])),
    ("MAP<STRING, INT>", pa.array([[("a", 2**31)]], pa.map_(pa.string(), pa.int64()))),
    ("MAP<STRING, INT>", pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))),
    ("MAP<STRING, INT NOT NULL>", pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32()))),
    ("ROW<a INT>", pa.array([{"a": 2**31}])),
    ("ROW<a INT>", pa.array([{"b": 1}])),
    ("ROW<a INT>", pa.array([{"a": 1, "b": 1}])),
    ("ROW<a INT NOT NULL>", pa.array([{"a": None}], pa.struct([("a", pa.int32())]))),
    ("ROW<a ARRAY<INT NOT NULL>>", pa.array([{"a": [None]}],
     pa.struct([("a", pa.list_(pa.int32()))]))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "column"), LOSSY, ids=lambda x: str(getattr(x, "type", x)))
def test_value_that_would_be_lost_or_change_its_kind_is_refused(
    lake: kt.Lake, kind: str, column: pa.Array
) -> None:
    table = new_table(lake, kind)
    before = files_below(lake)
    with pytest.raises(kt.InvalidError) as caught:
        table.write(pa.table({"k": [1], "v": column}))
    message = str(caught.value)
    assert "default.t" in message
    assert "'v'" in message
    assert table.table_schema.field("v").type.sql() in message
    assert "found" in message
    assert files_below(lake) == before


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("INT", "x"), ("INT", 2**31), ("INT", 1.5), ("STRING", 1), ("DATE", "2024-01-01"),
        ("BOOLEAN", 1), ("DECIMAL(4, 2)", Decimal("1.005")), ("ARRAY<INT>", ["x"]),
        ("ROW<a INT>", 3), ("BYTES", 1), ("TIMESTAMP(3)", "now"), ("BYTES", "text"),
        ("TIMESTAMP(3)", datetime(2024, 1, 1, 0, 0, 0, 1)), ("TIME(3)", time(1, 2, 3, 1)),
        ("DATE", datetime(2024, 1, 1, 12)), ("DATE", 1), ("TIMESTAMP(6)", 1),
        ("TIMESTAMP(6)", datetime(2024, 1, 1, tzinfo=timezone.utc)),
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE", datetime(2024, 1, 1)),
        ("FLOAT", 1e300), ("DOUBLE", 2**53 + 1), ("DOUBLE", Decimal("0.1")),
        ("ARRAY<INT>", [1.5]), ("ROW<a INT>", {"a": 1.5}), ("ROW<a INT>", {"a": 1, "b": 2}),
        ("MAP<STRING, INT>", {"a": 1.5}),
    ],
)  # fmt: skip
def test_python_value_that_does_not_fit_is_refused(lake: kt.Lake, kind: str, value: Any) -> None:
    table = new_table(lake, kind)
    before = files_below(lake)
    with pytest.raises(kt.InvalidError, match=r"column 'v' is .*found a value that does not fit"):
        table.write([{"k": 1, "v": value}])
    assert files_below(lake) == before


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("INT", 1.0, 1), ("INT", Decimal(1), 1), ("DOUBLE", 1, 1.0), ("FLOAT", 0.5, 0.5),
        ("FLOAT", 0.1, 0.10000000149011612), ("FLOAT", float("inf"), float("inf")),
        ("DECIMAL(4, 2)", 1, Decimal("1.00")), ("BYTES", bytearray(b"x"), b"x"),
        ("ARRAY<INT>", (1, 2), [1, 2]), ("MAP<STRING, INT>", {"a": 1}, [("a", 1)]),
        ("MAP<STRING, INT>", [("a", 1)], [("a", 1)]), ("ROW<a FLOAT>", {"a": 0.5}, {"a": 0.5}),
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE",
         datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
         datetime(2024, 1, 1, tzinfo=timezone.utc)),
    ],
)  # fmt: skip
def test_python_value_that_fits_in_another_form_is_taken(
    lake: kt.Lake, kind: str, value: Any, stored: Any
) -> None:
    table = new_table(lake, kind)
    table.write([{"k": 1, "v": value}])
    assert table.get(1) == {"k": 1, "v": stored}


# -- damaged and foreign files ---------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> kt.Table:
    """A table of two partitions and two snapshots, moved to where no cache knows it."""
    made = tmp_path / "made"
    schema = pa.schema([("p", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
    table = kt.connect(made).create_table("t", schema, ["p", "k"], ["p"])
    table.write([{"p": p, "k": 1, "v": f"old-{p}"} for p in (1, 2)])
    table.write([{"p": p, "k": 1, "v": f"new-{p}"} for p in (1, 2)])
    moved = tmp_path / "moved"
    shutil.move(made, moved)
    return kt.connect(moved).table("t")


def only_file(table: kt.Table, pattern: str) -> Path:
    return sorted(Path(table.uri).glob(pattern), key=lambda p: p.stat().st_mtime_ns)[-1]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "garbled": lambda path: path.write_bytes(bytes(255 - b for b in path.read_bytes())),
}
METADATA = {
    "manifest": "manifest/manifest-[!l]*",
    "manifest list": "manifest/manifest-list-*",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_file_is_named_and_other_partitions_stay_readable(
    damaged: kt.Table, damage: str
) -> None:
    path = only_file(damaged, "p=1/bucket-0/*.parquet")
    DAMAGES[damage](path)
    with pytest.raises(kt.DataError, match=str(path)):
        damaged.scan().to_arrow()
    with pytest.raises(kt.DataError, match=str(path)):
        list(damaged.scan().to_batches())
    with pytest.raises(kt.DataError, match=str(path)):
        damaged.get((1, 1))
    assert damaged.scan(where="p = 2").to_pylist() == [{"p": 2, "k": 1, "v": "new-2"}]
    assert damaged.get((2, 1)) == {"p": 2, "k": 1, "v": "new-2"}
    assert damaged.scan(snapshot_id=1).count() == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_file_is_named_where_files_are_read_through_the_store(
    damaged: kt.Table, damage: str
) -> None:
    path = only_file(damaged, "p=1/bucket-0/*.parquet")
    DAMAGES[damage](path)
    warehouse = str(Path(damaged.uri).parents[1])
    table = kt.connect("", store=FaultyStore(open_store(warehouse))).table("t")
    with pytest.raises(kt.DataError, match=str(path)):
        table.scan().to_arrow()
    assert table.scan(where="p = 2").to_pylist() == [{"p": 2, "k": 1, "v": "new-2"}]


@pytest.mark.parametrize("kind", METADATA)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_manifest_is_named_and_nothing_is_written_on_top(
    damaged: kt.Table, kind: str, damage: str
) -> None:
    path = only_file(damaged, METADATA[kind])
    DAMAGES[damage](path)
    with pytest.raises(kt.DataError, match=str(path)):
        damaged.scan().to_arrow()
    with pytest.raises(kt.DataError, match=str(path)):
        damaged.write([{"p": 3, "k": 3, "v": "x"}])
    assert [s.id for s in damaged.snapshots()] == [1, 2]


@pytest.mark.parametrize("damage", ["torn", "empty", "garbled"])
def test_damaged_newest_snapshot_is_named_and_older_ones_stay_readable(
    damaged: kt.Table, damage: str
) -> None:
    path = Path(damaged.uri) / "snapshot/snapshot-2"
    DAMAGES[damage](path)
    with pytest.raises(kt.DataError, match=str(path)):
        damaged.scan()
    with pytest.raises(kt.DataError, match=str(path)):
        damaged.write([{"p": 3, "k": 3, "v": "x"}])
    assert rows(damaged.scan(snapshot_id=1)) == [(1, 1, "old-1"), (2, 1, "old-2")]


def test_missing_snapshot_is_told_with_those_there_are(damaged: kt.Table) -> None:
    (Path(damaged.uri) / "snapshot/snapshot-1").unlink()
    with pytest.raises(kt.NotFoundError, match="no snapshot 1; snapshots 2 to 2 exist"):
        damaged.scan(snapshot_id=1)
    assert damaged.scan().count() == 2


@pytest.mark.parametrize("hint", [None, b"", b"xx", b"1", b"7", b"-1"])
def test_hint_that_is_wrong_or_missing_misleads_nobody(
    damaged: kt.Table, hint: bytes | None
) -> None:
    path = Path(damaged.uri) / "snapshot/LATEST"
    path.unlink()
    if hint is not None:
        path.write_bytes(hint)
    assert rows(damaged) == [(1, 1, "new-1"), (2, 1, "new-2")]
    damaged.write([{"p": 1, "k": 1, "v": "newer"}])
    assert [s.id for s in damaged.snapshots()] == [1, 2, 3]


@pytest.mark.parametrize("damage", ["torn", "empty", "garbled"])
def test_damaged_schema_is_named(damaged: kt.Table, damage: str) -> None:
    path = Path(damaged.uri) / "schema/schema-0"
    DAMAGES[damage](path)
    with pytest.raises(kt.DataError, match=str(path)):
        kt.open_table(damaged.uri)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_older_schema_is_named(damaged: kt.Table, damage: str) -> None:
    path = Path(damaged.uri) / "schema/schema-0"
    newer = json.loads(path.read_text()) | {"id": 1}
    path.with_name("schema-1").write_text(json.dumps(newer))
    DAMAGES[damage](path)
    with pytest.raises(kt.DataError, match=str(path)):
        kt.open_table(damaged.uri).scan().to_arrow()


def test_schema_of_a_newer_format_is_refused(damaged: kt.Table) -> None:
    set_version(Path(damaged.uri) / "schema/schema-0", 4)
    with pytest.raises(kt.UnsupportedError, match=r"schema-0: .*version 4.*newer"):
        kt.open_table(damaged.uri)


def test_snapshot_of_a_newer_format_is_refused_for_reading_and_writing(damaged: kt.Table) -> None:
    set_version(Path(damaged.uri) / "snapshot/snapshot-2", 4)
    with pytest.raises(kt.UnsupportedError, match=r"snapshot-2.*version 4"):
        damaged.scan()
    with pytest.raises(kt.UnsupportedError, match=r"snapshot-2.*version 4"):
        damaged.write([{"p": 3, "k": 3, "v": "x"}])
    assert damaged.scan(snapshot_id=1).count() == 2


def set_version(path: Path, version: int) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("sequence.auto-padding", "row-kind-flag", "without a 'sequence.field'"),
    ],
)
def test_table_of_another_engine_that_must_not_be_written_to_is_refused(
    damaged: kt.Table, option: str, value: str, reason: str
) -> None:
    path = Path(damaged.uri) / "schema/schema-0"
    schema = json.loads(path.read_text())
    schema["options"][option] = value
    path.write_text(json.dumps(schema))
    table = kt.open_table(damaged.uri)
    with pytest.raises(kt.UnsupportedError, match=f"cannot write to it: .*{reason}"):
        table.write([{"p": 3, "k": 3, "v": "x"}])
    assert [s.id for s in table.snapshots()] == [1, 2]


def test_other_number_of_buckets_is_refused_and_nothing_is_committed(damaged: kt.Table) -> None:
    path = Path(damaged.uri) / "schema/schema-0"
    schema = json.loads(path.read_text())
    schema["options"]["bucket"] = "4"
    path.write_text(json.dumps(schema))
    table = kt.open_table(damaged.uri)
    with pytest.raises(kt.InvalidError, match=r"new bucket num 4, but the previous .* is 1"):
        table.write([{"p": 1, "k": 3, "v": "x"}])
    table.write([{"p": 3, "k": 3, "v": "new partition, new number"}])
    assert rows(table) == [
        (1, 1, "new-1"), (2, 1, "new-2"), (3, 3, "new partition, new number"),
    ]  # fmt: skip
