"""What Keytide wrote in several commits reads alike everywhere: whole, in part, in the past."""

from __future__ import annotations

import pyarrow as pa
import pytest
from interop_judges import Condition, Judge, assert_reads_alike, write_with
from interop_values import arrow_rows, field, typed, value_lines

import keytide as kt

ODD_TEXTS = [
    "", " ", "a b", "a/b", "a=b", "a%2Fb", "..", "a:b*?<>|", "#", "\\", "'\"", "{x}", "[y]", "^",
    "\t\n\x7f", "é", "日本語", "\U0001f600", "A", "a", "null",
    "__DEFAULT_PARTITION__x", "-1", "2024-01-01",
]  # fmt: skip


# -- keys, deletions, order ----------------------------------------------------------------------


@pytest.fixture(params=["1", "4"], ids=["one bucket", "four buckets"])
def orders(request: pytest.FixtureRequest, lake: kt.Lake) -> kt.Table:
    """A table with a composite key, in other order than its columns."""
    columns = [field("v", "STRING"), field("b", "BIGINT NOT NULL"), field("a", "STRING NOT NULL")]
    options = {"bucket": request.param}
    return lake.create_table("db.orders", columns, ["a", "b"], options=options)


def test_interop_updates_and_deletes_of_composite_keys_read_alike(
    judge: Judge, orders: kt.Table
) -> None:
    orders.write(typed(orders, "+I one 1 x", "+I two 2 x", "+I three 1 y", "+I four 2 y"))
    orders.write(typed(orders, "-U one 1 x", "+U uno 1 x", "-D two 2 x"))
    orders.write(typed(orders, "+I due 2 x", "-U four 2 y", "-D NULL 3 z", "+I five 9 z"))
    orders.write(typed(orders, "-D five 9 z", "+I NULL 1 y"))
    assert_reads_alike(judge, orders)
    assert value_lines(orders) == ["NULL 1 y", "due 2 x", "uno 1 x"]


@pytest.mark.parametrize("kind", ["-D", "-U"])
def test_interop_deletion_in_lone_file_is_hidden(judge: Judge, orders: kt.Table, kind: str) -> None:
    orders.write(typed(orders, f"{kind} one 1 x", "+I two 2 x", f"{kind} three 3 x"))
    assert_reads_alike(judge, orders)
    assert value_lines(orders) == ["two 2 x"]


def test_interop_table_with_nothing_but_deletions_is_empty(judge: Judge, orders: kt.Table) -> None:
    orders.write(typed(orders, "+I one 1 x"))
    orders.write(typed(orders, "-D one 1 x"))
    assert assert_reads_alike(judge, orders) == []


def test_interop_deletion_leaves_not_null_columns_without_a_value(
    judge: Judge, lake: kt.Lake
) -> None:
    columns = [field("k", "INT NOT NULL"), field("v", "ROW<a INT> NOT NULL")]
    table = lake.create_table("db.t", columns, ["k"])
    table.write([{"k": 1, "v": {"a": 1}}, {"k": 2, "v": {"a": None}}])
    table.write(pa.table({"k": pa.array([1], pa.int32()), "_row_kind": ["-D"]}))
    assert len(assert_reads_alike(judge, table)) == 1


SEQUENCE_OPTIONS = {
    "ascending": {"sequence.field": "s"},
    "descending": {"sequence.field": "s", "sequence.field.sort-order": "descending"},
    "two fields": {"sequence.field": "s,r"},
    "two fields descending": {"sequence.field": "r,s", "sequence.field.sort-order": "descending"},
}
SEQUENCE_WINNERS = {
    "ascending": ["1 d 9 0", "2 b 5 1", "3 b NULL NULL", "4 c 9 NULL"],
    "descending": ["1 a 1 7", "2 b 5 1", "3 b NULL NULL", "4 d 8 NULL"],
    "two fields": ["1 c 9 9", "2 a 5 2", "3 b NULL NULL"],
    "two fields descending": ["1 d 9 0", "2 b 5 1", "3 b NULL NULL"],
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("case", SEQUENCE_OPTIONS)
def test_interop_sequence_field_decides_alike(judge: Judge, lake: kt.Lake, case: str) -> None:
    columns = [
        field("k", "INT NOT NULL"),
        field("v", "STRING"),
        field("s", "INT"),
        field("r", "INT"),
    ]
    table = lake.create_table("db.t", columns, ["k"], options=SEQUENCE_OPTIONS[case])
    table.write(typed(table, "+I 1 a 1 7", "+I 2 a 5 2", "+I 3 a NULL NULL", "+I 4 a 9 9"))
    table.write(typed(table, "+I 1 b NULL 8", "+I 2 b 5 1", "+I 3 b NULL NULL", "-D 4 b 9 9"))
    table.write(typed(table, "+I 1 c 9 9", "+I 4 c 9 NULL"))
    table.write(typed(table, "+U 1 d 9 0", "+U 4 d 8 NULL"))
    assert_reads_alike(judge, table)
    assert value_lines(table) == SEQUENCE_WINNERS[case]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "sql_type",
    ["TINYINT", "BIGINT", "DOUBLE", "DECIMAL(20, 2)", "STRING", "DATE", "TIME(3)",
     "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(6) WITH LOCAL TIME ZONE"],
)  # fmt: skip
def test_interop_sequence_field_of_every_kind_decides_alike(
    judge: Judge, lake: kt.Lake, sql_type: str
) -> None:
    columns = [field("k", "INT NOT NULL"), field("v", "STRING"), field("s", sql_type)]
    table = lake.create_table("db.t", columns, ["k"], options={"sequence.field": "s"})
    kind = table.schema.field("s").type
    moments = [pa.scalar(n, pa.int32()) for n in (20, 10, 30, 30)]
    through = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    for version, moment in zip("abcd", moments, strict=True):
        value = moment.cast(pa.string() if sql_type == "STRING" else through).cast(kind)
        column = pa.array([value, None], kind)
        part = arrow_rows(table.schema, {"k": [1, 2], "v": [version, version]})
        table.write(part.append_column(table.schema.field("s"), column))
    assert_reads_alike(judge, table)
    assert table.scan(columns=["k", "v"]).to_arrow().sort_by("k")["v"].to_pylist() == ["d", "d"]


@pytest.mark.parametrize(
    ("tombstone", "options", "dead", "alive"),
    [
        ("BOOLEAN", {}, "true", "false"),
        ("STRING", {"tombstone.string-key-value": "D"}, "D", "U"),
        ("TIMESTAMP(3)", {}, "2024-01-01", "NULL"),
    ],
)
def test_interop_watermark_and_tombstone_table_reads_alike(
    judge: Judge,
    lake: kt.Lake,
    tombstone: str,
    options: dict[str, str],
    dead: str,
    alive: str,
) -> None:
    columns = [
        field("k", "INT NOT NULL"), field("v", "STRING"),
        field("w", "BIGINT"), field("gone", tombstone),
    ]  # fmt: skip
    keys = {"watermark.key": "w", "tombstone.key": "gone"}
    table = lake.create_table("db.t", columns, ["k"], options={**keys, **options})
    table.write(typed(table, f"+I 1 a 10 {alive}", f"+I 2 a 10 {alive}", f"+I 3 a NULL {alive}"))
    table.write(typed(table, f"+I 1 b 9 {dead}", f"+I 2 b 11 {dead}", f"+I 3 b 1 {dead}"))
    table.write(typed(table, f"+I 2 c 10 {alive}", f"+I 3 c 2 {alive}", f"+I 4 c 5 {dead}"))
    assert_reads_alike(judge, table)
    assert table.scan(columns=["k", "v"]).to_arrow().sort_by("k").to_pylist() == [
        {"k": 1, "v": "a"},
        {"k": 3, "v": "c"},
    ]


# -- partitions ----------------------------------------------------------------------------------


@pytest.mark.one_in(14)
def test_interop_partitions_with_odd_names_read_alike(judge: Judge, lake: kt.Lake) -> None:
    columns = [field("p", "STRING NOT NULL"), field("k", "INT NOT NULL"), field("v", "STRING")]
    table = lake.create_table("db.t", columns, ["p", "k"], ["p"], {"bucket": "2"})
    for version in "ab":
        keys = {"p": ODD_TEXTS, "k": list(range(len(ODD_TEXTS)))}
        table.write(arrow_rows(table.schema, {**keys, "v": [version] * len(ODD_TEXTS)}))
    assert len(assert_reads_alike(judge, table)) == len(ODD_TEXTS)
    for text in ("a b", "a/b", "日本語"):
        assert len(assert_reads_alike(judge, table, where=[Condition("p", "=", (text,))])) == 1


def test_interop_several_partition_columns_read_alike(judge: Judge, lake: kt.Lake) -> None:
    columns = [
        field("n", "INT NOT NULL"), field("k", "INT NOT NULL"), field("d", "DATE NOT NULL"),
        field("v", "STRING"), field("t", "STRING NOT NULL"),
    ]  # fmt: skip
    table = lake.create_table("db.t", columns, ["k", "t", "d", "n"], ["t", "d", "n"])
    table.write(
        typed(table, "+I 1 1 2024-02-29 a x", "+I -1 1 1969-12-31 a x/y", "+I 1 2 9999-12-31 a z")
    )
    table.write(
        typed(table, "+I 1 1 2024-02-29 b x", "-D -1 1 1969-12-31 a x/y", "+I 2 1 2024-02-29 b x")
    )
    assert_reads_alike(judge, table)
    assert_reads_alike(judge, table, columns=["d", "v"])
    assert len(assert_reads_alike(judge, table, where=[Condition("n", "=", (1,))])) == 2
    assert len(assert_reads_alike(judge, table, where=[Condition("t", "=", ("x",))])) == 2


# -- columns and conditions ----------------------------------------------------------------------


@pytest.fixture(params=["none", "counts", "truncate(16)", "full"])
def pruned(request: pytest.FixtureRequest, lake: kt.Lake) -> kt.Table:
    """Several files in several buckets, whose statistics let a reader leave files out."""
    columns = [
        field("id", "BIGINT NOT NULL"), field("name", "STRING"), field("qty", "INT"),
        field("price", "DECIMAL(10, 2)"), field("day", "DATE"),
    ]  # fmt: skip
    options = {"bucket": "3", "metadata.stats-mode": request.param}
    table = lake.create_table("db.t", columns, ["id"], options=options)
    for start in (0, 20, 15, 100):
        ids = range(start, start + 20)
        values = {
            "id": ids,
            "name": [None if i % 7 == 0 else f"name-{'x' * 20}-{i:03}" for i in ids],
            "qty": [None if i % 5 == 0 else start - i for i in ids],
            "price": [f"{i}.25" for i in ids],
            "day": [19_000 + i for i in ids],
        }
        text = pa.array(values.pop("price")).cast(table.schema.field("price").type)
        part = arrow_rows(table.schema, {**values, "price": text.to_pylist()})
        table.write(part.select(table.schema.names))
    return table


CONDITIONS = {
    "key =": [Condition("id", "=", (17,))],
    "no such key": [Condition("id", "=", (60,))],
    "key in": [Condition("id", "in", (3, 34, 77, 119))],
    "key range": [Condition("id", ">=", (18,)), Condition("id", "<", (23,))],
    "text": [Condition("name", "=", (f"name-{'x' * 20}-016",))],
    "text range": [Condition("name", ">", (f"name-{'x' * 20}-110",))],
    "number": [Condition("qty", "<=", (-18,))],
    "null": [Condition("qty", "is null")],
    "not null": [Condition("name", "is not null"), Condition("id", ">", (100,))],
    "overwritten version": [Condition("qty", "=", (-16,)), Condition("id", "<", (40,))],
}


@pytest.mark.one_in(14)
def test_interop_conditions_keep_the_same_rows(judge: Judge, pruned: kt.Table) -> None:
    found = {
        case: len(assert_reads_alike(judge, pruned, where=where))
        for case, where in CONDITIONS.items()
    }
    assert found == {
        "key =": 1, "no such key": 0, "key in": 3, "key range": 5, "text": 1, "text range": 7,
        "number": 6, "null": 12, "not null": 16, "overwritten version": 2,
    }  # fmt: skip


@pytest.mark.one_in(14)
def test_interop_chosen_columns_read_alike(judge: Judge, pruned: kt.Table) -> None:
    for name in pruned.schema.names:
        assert len(assert_reads_alike(judge, pruned, columns=[name])) == 60
    assert len(assert_reads_alike(judge, pruned, columns=["qty", "name"])) == 60
    where = [Condition("id", ">", (110,))]
    assert len(assert_reads_alike(judge, pruned, columns=["name"], where=where)) == 9


# -- snapshots -----------------------------------------------------------------------------------


def manifest_count(table: kt.Table, snapshot_id: int) -> int:
    snapshot = table.metadata.snapshot(snapshot_id)
    manifests = (table.metadata.base_manifests(snapshot), table.metadata.delta_manifests(snapshot))
    return sum(map(len, manifests))


@pytest.mark.one_in(14)
def test_interop_snapshots_read_alike_after_manifests_were_merged(
    judge: Judge, lake: kt.Lake
) -> None:
    columns = [field("p", "INT NOT NULL"), field("k", "INT NOT NULL"), field("v", "INT")]
    options = {"bucket": "2", "write-only": "true"}
    table = lake.create_table("db.t", columns, ["p", "k"], ["p"], options)
    for n in range(1, 36):
        kind = "-D" if n % 4 == 3 else "+I"
        table.write(typed(table, f"{kind} {n % 3} {n % 10} {n}", f"+I 0 {n} {n}"))
    assert manifest_count(table, 35) < manifest_count(table, 25)
    counts = [len(assert_reads_alike(judge, table, snapshot_id=n)) for n in (1, 12, 30, 31, 35)]
    assert counts == [2, 18, 45, 45, 48]
    assert len(assert_reads_alike(judge, table)) == counts[-1]


def test_interop_file_that_sorts_nan_first_is_merged_and_pruned_right(
    pypaimon: Judge, lake: kt.Lake
) -> None:
    """pypaimon sorts NaN first: its file begins above its end."""
    table = lake.create_table("db.t", [field("k", "DOUBLE NOT NULL"), field("v", "INT")], ["k"])
    nan = float("nan")
    write_with(pypaimon, table, arrow_rows(table.schema, {"k": [nan, 1.0, 2.0], "v": [1, 1, 1]}))
    table.write(arrow_rows(table.schema, {"k": [2.0, nan], "v": [2, 2]}))
    table.write(arrow_rows(table.schema, {"k": [3.0], "v": [3]}))
    found = {str(row["k"]): row["v"] for row in table.scan().to_pylist()}
    assert found == {"nan": 2, "1.0": 1, "2.0": 2, "3.0": 3}
    assert table.scan(where="k = 1.0").to_pylist() == [{"k": 1.0, "v": 1}]
    assert table.get(nan) is not None
