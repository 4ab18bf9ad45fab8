"""Append tables: without a primary key every row that is written is kept, as it came."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import AddColumn, SetOption
from keytide.format.manifest_entry import ManifestEntry
from keytide.snapshot.lineage import forget_lineages
from keytide.write.bucket_writer import BucketWriter
from new_tables import empty_table
from overtaking import overtaken
from table_rows import reopened

SCHEMA = pa.schema([("p", pa.string()), ("n", pa.int64()), ("v", pa.string())])
LAYOUTS: list[tuple[list[str], dict[str, str]]] = [
    ([], {}),
    (["p"], {}),
    ([], {"bucket": "3", "bucket-key": "n"}),
    (["p"], {"bucket": "2", "bucket-key": "n,v"}),
]

SAMPLES = Path(__file__).parents[1] / "data/samples"

Row = dict[str, Any]


def parsed(text: str) -> list[Row]:
    """Rows of `a1x`: p is a, n is 1, v is x; `~` stands for NULL."""
    return [
        {"p": word[0], "n": int(word[1:-1]), "v": None if word[-1] == "~" else word[-1]}
        for word in text.split()
    ]


def texts(rows: list[Row]) -> list[str]:
    """The same rows as words."""
    return [f"{row['p']}{row['n']}{row['v'] or '~'}" for row in rows]


def words_of(table: kt.Table, **travel: Any) -> str:
    """What a reader sees who has seen nothing before, sorted."""
    fresh = reopened(table)
    return " ".join(sorted(texts(fresh.scan(**travel).to_pylist())))


def new_table(partition_by: list[str] | None = None, **options: str) -> kt.Table:
    return empty_table(SCHEMA, (), partition_by or [], options)


def stored(table: kt.Table, entry: ManifestEntry) -> pa.Table:
    """A data file as it lies."""
    view = table.stored.view(table.table_schema)
    with table.metadata.store.open_input(view.file_path(entry)) as file:
        return pq.read_table(file)


# -- a list of rows as oracle ----------------------------------------------------------------------

some_rows = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.sampled_from("xy~")), max_size=8
).map(lambda rows: " ".join(f"{p}{n}{v}" for p, n, v in rows))
steps = st.lists(
    st.tuples(st.sampled_from(["write", "write", "write", "overwrite", "truncate"]), some_rows),
    min_size=1, max_size=6,
)  # fmt: skip


@given(steps, st.sampled_from(LAYOUTS))
def test_table_holds_what_a_list_of_rows_holds(
    steps: list[tuple[str, str]], layout: tuple[list[str], dict[str, str]]
) -> None:
    partition_by, options = layout
    table = new_table(partition_by, **options)
    expected: list[str] = []
    for action, text in steps:
        if action == "write":
            table.write(parsed(text))
            expected += text.split()
        elif action == "overwrite":
            table.overwrite(parsed(text))
            gone = {word[0] for word in text.split()} if partition_by else {"a", "b"}
            expected = [word for word in expected if word[0] not in gone] + text.split()
        else:
            table.truncate()
            expected = []
        assert Counter(texts(table.scan().to_pylist())) == Counter(expected)
        assert table.scan().count() == len(expected)
        assert words_of(table, where="n >= 2 AND v = 'x'").split() == sorted(
            word for word in expected if int(word[1:-1]) >= 2 and word[-1] == "x"
        )


@given(st.lists(some_rows.filter(bool), min_size=1, max_size=4), st.sampled_from(LAYOUTS))
def test_file_holds_one_write_in_order_of_arrival(
    writes: list[str], layout: tuple[list[str], dict[str, str]]
) -> None:
    table = new_table(layout[0], **layout[1])
    for text in writes:
        before = set(table.stored.newest_files().by_identity)
        table.write(parsed(text))
        live = table.stored.newest_files().by_identity
        files = [stored(table, entry) for identity, entry in live.items() if identity not in before]
        assert all(file.column_names == ["p", "n", "v"] for file in files)
        found = [texts(file.to_pylist()) for file in files]
        assert Counter(word for file in found for word in file) == Counter(text.split())
        for file in found:
            others = list(text.split())
            for word in file:  # as a subsequence of what was written
                del others[: others.index(word) + 1]


def test_manifest_says_what_the_format_wants_of_rows_without_a_key() -> None:
    table = new_table()
    table.write(parsed("b2x a1y b2x"))
    table.write(parsed("a3~"))
    assert table.options["bucket"] == "-1"
    first, second = table.stored.newest_files().entries
    assert (first.bucket, first.total_buckets, first.file.level) == (0, -1, 0)
    assert {first.file.min_key, first.file.max_key, first.file.key_stats.min_values} == {bytes(12)}
    assert first.file.delete_row_count == 0
    numbers = [(e.file.min_sequence_number, e.file.max_sequence_number) for e in (first, second)]
    assert numbers == [(0, 2), (3, 3)]
    assert first.file.value_stats.null_counts == (0, 0, 0)
    assert second.file.value_stats.null_counts == (0, 0, 1)
    (read,) = table.scan(where="n = 3").plan.buckets  # statistics leave the other one out
    assert [file.entry for file in read.files] == [second]


# -- other writers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_writers_that_overtake_each_other_are_all_kept(
    layout: tuple[list[str], dict[str, str]],
) -> None:
    table = new_table(layout[0], **layout[1])
    table.write(parsed("a1x b2y"))
    slow = overtaken(table, lambda: table.write(parsed("a1x b5y")))
    slow.write(parsed("a1x b2y"))
    assert words_of(table) == "a1x a1x a1x b2y b2y b5y"


# -- life ------------------------------------------------------------------------------------------


def test_older_snapshots_keep_their_rows_and_columns_can_be_added() -> None:
    table = new_table()
    table.write(parsed("a1x"))
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")))
    table.write([{"p": "a", "n": 1, "v": "x", "w": 7}])
    assert words_of(table, snapshot_id=1) == "a1x"
    assert [row["w"] for row in table.scan().to_pylist()] == [None, 7]


def test_number_of_buckets_changes_for_new_partitions_and_overwrites() -> None:
    table = new_table(bucket="2", **{"bucket-key": "n"})
    table.write(parsed("a1x a2x a3x"))
    table.alter(SetOption("bucket", "4"))
    with pytest.raises(kt.InvalidError, match="previous bucket num is 2"):
        table.write(parsed("a4x"))
    table.overwrite(table.scan().to_arrow())
    table.write(parsed("a4x"))
    assert words_of(table) == "a1x a2x a3x a4x"
    assert words_of(table, where="n = 4") == "a4x"
    with pytest.raises(kt.InvalidError, match="Cannot change bucket"):
        table.alter(SetOption("bucket", "-1"))


# -- SQL -------------------------------------------------------------------------------------------


def test_create_table_without_primary_key_makes_an_append_table(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (p STRING, n BIGINT NOT NULL, v STRING) PARTITIONED BY (p)")
    lake.sql("INSERT INTO t VALUES ('a', 1, 'x'), ('a', 1, 'x'), ('b', 2, NULL)")
    lake.sql("INSERT OVERWRITE t PARTITION (p = 'b') VALUES (3, 'z')")
    assert words_of(lake.table("t")) == "a1x a1x b3z"
    lake.sql("CREATE TABLE u AS SELECT p, n, v FROM t WHERE n = 1")
    lake.sql("CREATE TABLE w LIKE t; INSERT INTO w SELECT * FROM t")
    assert words_of(lake.table("u")) == "a1x a1x"
    assert words_of(lake.table("w")) == "a1x a1x b3z"
    (row,) = lake.sql("SHOW CREATE TABLE t").to_arrow().to_pylist()
    lake.sql("DROP TABLE t")
    lake.sql(row["create_table"])
    assert lake.table("t").primary_key == ()
    kinds = lake.sql("SELECT rowkind, n FROM w$audit_log ORDER BY n").to_arrow().to_pylist()
    assert kinds == [{"rowkind": "+I", "n": n} for n in (1, 1, 3)]
    for system in ("files", "buckets", "partitions", "manifests", "ro"):
        assert lake.sql(f"SELECT * FROM w${system}").to_arrow().num_rows > 0


# -- what needs a key ------------------------------------------------------------------------------

BY_KEY: dict[str, Callable[[kt.Lake], Any]] = {
    "get": lambda lake: lake.table("t").get({"n": 1}),
    "why": lambda lake: lake.table("t").why(1),
    "CALL": lambda lake: lake.sql("CALL sys.why('t', 1)"),
}


@pytest.mark.parametrize("name", BY_KEY)
def test_what_goes_by_key_is_refused_by_name(name: str, lake: kt.Lake) -> None:
    lake.create_table("t", SCHEMA, ()).write(parsed("a1x"))
    with pytest.raises(kt.UnsupportedError, match=r"table default\.t has no primary key"):
        BY_KEY[name](lake)
    assert words_of(lake.table("t")) == "a1x"


@pytest.mark.parametrize("kind", ["-D", "-U", "+U"])
def test_row_that_changes_another_is_refused_before_anything_is_written(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    monkeypatch.setattr(BucketWriter, "_write_batch", None)
    rows = [{**row, "_row_kind": k} for row, k in zip(parsed("a1x b2y"), ["+I", kind], strict=True)]
    with pytest.raises(kt.InvalidError, match=rf"1 of 2 rows cannot be stored, .*\{kind} changes"):
        table.write(rows)
    assert table.metadata.latest_snapshot() is None


def test_deletes_that_the_table_ignores_are_left_out() -> None:
    table = new_table(**{"ignore-delete": "true", "rowkind.field": "v"})
    with pytest.raises(kt.InvalidError, match="Unsupported short string"):
        table.write(parsed("a1x"))
    kinds = ["+I", "-D", "-U"]
    table.write([{"p": "a", "n": n, "v": kind} for n, kind in enumerate(kinds)])
    assert [row["n"] for row in table.scan().to_pylist()] == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge-engine": "aggregation"}, "no primary key"),
        ({"sequence.field": "n"}, "no primary key"),
        ({"fields.n.aggregate-function": "sum"}, "no primary key"),
        ({"watermark.key": "n"}, "requires a primary key"),
        ({"changelog-producer": "lookup"}, "needs a primary key"),
        ({"bucket": "2"}, "You should define a 'bucket-key'"),
        ({"bucket": "-2"}, "requires a primary key"),
        ({"bucket-key": "n"}, "needs a fixed number of buckets"),
        ({"bucket": "2", "bucket-key": "z"}, "names the field 'z', which does not exist"),
        ({"row-tracking.enabled": "true"}, "no row ids"),
        (
            {"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"},
            "no primary key",
        ),
        (
            {"deletion-vectors.enabled": "true", "index-file-in-data-file-dir": "true"},
            "next to the data",
        ),
    ],
)
def test_option_without_meaning_or_support_is_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises((kt.InvalidError, kt.UnsupportedError), match=message):
        new_table(**options)


def test_nobody_forgets_the_key_by_accident(warehouse: str) -> None:
    with pytest.raises(TypeError, match="primary_key"):
        kt.connect(warehouse).create_table("t", SCHEMA)  # type: ignore[call-arg]


# -- tables of other engines that are not read -----------------------------------------------------


@pytest.mark.parametrize(
    ("option", "reads"), [("row-tracking.enabled", True), ("data-evolution.enabled", False)]
)
def test_table_with_row_ids_is_not_written(option: str, reads: bool, warehouse: str) -> None:
    table = kt.connect(warehouse).create_table("t", SCHEMA, ())
    table.write(parsed("a1x"))
    path = next(Path(warehouse).rglob("schema-0"))
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "options": {**stored["options"], option: "true"}}))
    forget_lineages()
    table = kt.connect(warehouse).table("t")
    with pytest.raises(kt.UnsupportedError, match=option):
        table.write(parsed("b2y"))
    if reads:
        assert words_of(table) == "a1x"
    else:
        with pytest.raises(kt.UnsupportedError, match=option):
            table.scan().to_arrow()


def test_rows_that_another_engine_marked_as_dead_are_left_out(tmp_path: Path) -> None:
    """A table with vectors, whose key is taken away: files and vectors are read as they are."""
    shutil.copytree(SAMPLES / "wh/spec.db/dv", tmp_path / "dv")
    for path in (tmp_path / "dv/schema").glob("schema-*"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "primaryKeys": []}))
    table = kt.open_table(tmp_path / "dv")
    live = table.stored.newest_files()
    assert live.snapshot is not None
    vectors = table.metadata.index_files(live.snapshot)
    dead = sum(r.cardinality or 0 for index in vectors for r in index.ranges or ())
    assert dead > 0
    assert table.scan().count() == sum(e.file.row_count for e in live.entries) - dead
    with pytest.raises(kt.UnsupportedError, match="cannot write to it"):
        table.write(table.scan().to_arrow())


@pytest.mark.parametrize(("partition_by", "options"), LAYOUTS)
def test_explanation_speaks_of_no_merge_as_there_is_none(
    partition_by: list[str], options: dict[str, str]
) -> None:
    table = new_table(partition_by, **options)
    table.write(parsed("a1x b2y"))
    told = table.scan().explain()
    assert (told.merge_engine, told.files_merged) == (None, 0)
    assert "merged" not in str(told)
    assert "deduplicate" not in str(told)
