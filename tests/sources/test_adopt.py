"""Tables of others adopted: the only row of each key, on the lowest level of a new table."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from delta_tables import delete_by_vector
from iceberg_tables import create, delete_positions, live_files
from keytide.store import open_store
from keytide.store.faults import Crash, Fault, FaultyStore
from table_rows import rows

deltalake = pytest.importorskip("deltalake")

SCHEMA = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("d", pa.bool_()), ("v", pa.string())])
KEYS: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"], "tombstone_key": "d"}
NO_VERSIONS: dict[str, Any] = {"watermark_key": (), "tombstone_key": None}
Row = tuple[Any, ...]


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )


def as_parquet(folder: Path, files: Sequence[Sequence[Row]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(files):
        pq.write_table(table_of(batch), folder / f"{number}.parquet")
    return folder


def as_delta(folder: Path, files: Sequence[Sequence[Row]]) -> Path:
    for batch in files:
        deltalake.write_deltalake(str(folder), table_of(batch), mode="append")
    return folder


def as_iceberg(folder: Path, files: Sequence[Sequence[Row]]) -> Path:
    table = create(folder, SCHEMA)
    for batch in files:
        table.append(table_of(batch))
    return Path(table.location().removeprefix("file://"))


WRITERS: Mapping[str, Callable[[Path, Sequence[Sequence[Row]]], Path]] = {
    "parquet": as_parquet, "delta": as_delta, "iceberg": as_iceberg,
}  # fmt: skip
KINDS: Mapping[str, dict[str, str]] = {
    "one bucket": {},
    "buckets": {"bucket": "3", "read.memory": "1 kb"},
    "dynamic buckets": {"bucket": "-1"},
    "vectors": {"deletion-vectors.enabled": "true"},
    "index": {"upsert.mode": "full", "bucket": "2", "read.memory": "1 kb"},
}

ROWS: list[Row] = [(k, 10 * k, None, f"v{k}") for k in range(12)]
TOMBSTONE: Row = (12, 120, True, None)


@pytest.fixture
def lake(tmp_path: Path) -> kt.Lake:
    return kt.connect(tmp_path / "lake", allow_external_files=True)


def managed(lake: kt.Lake, name: str = "t") -> kt.Table:
    table = lake.table(name)
    assert isinstance(table, kt.Table)
    return table


def adopt(lake: kt.Lake, location: Path, **more: Any) -> kt.Table:
    lake.adopt("t", **{"format": "parquet", "location": location, **KEYS, **more})
    return managed(lake)


def data_files(lake: kt.Lake) -> list[Path]:
    return [*Path(lake.uri.removeprefix("file://")).rglob("*.parquet")]


# -- what becomes of rows --------------------------------------------------------------------------


@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("format_", WRITERS)
def test_adopted_table_has_the_rows_on_its_lowest_level(
    lake: kt.Lake, tmp_path: Path, format_: str, *, is_sorted: bool
) -> None:
    given = list(ROWS) if is_sorted else random.Random(1).sample(ROWS, len(ROWS))
    location = WRITERS[format_](tmp_path / "theirs", [given[:5], given[5:]])
    done = lake.adopt("t", format=format_, location=location, **KEYS, options={"bucket": "2"})
    shutil.rmtree(location)
    assert (done.rows, done.snapshot_id) == (12, 1)
    assert (done.version is None) == (format_ == "parquet")
    table = managed(lake)
    assert rows(table) == ROWS
    files = [entry.file for entry in table.scan().live.entries]
    assert {(f.level, f.delete_row_count, f.max_sequence_number) for f in files} == {(5, 0, 0)}
    told = table.metadata.latest_schema().options["user.adopted-from"]
    assert format_ in told
    assert (done.version or "") in told
    assert table.verify().is_healthy


def test_rows_that_a_deletion_vector_marks_stay_behind(lake: kt.Lake, tmp_path: Path) -> None:
    location = as_delta(tmp_path / "theirs", [ROWS])
    (path,) = deltalake.DeltaTable(str(location)).file_uris()
    delete_by_vector(location, Path(path).name, [0, 3], inline=True)
    assert rows(adopt(lake, location, format="delta")) == ROWS[1:3] + ROWS[4:]


def test_rows_that_position_deletes_mark_stay_behind(lake: kt.Lake, tmp_path: Path) -> None:
    table = create(tmp_path / "theirs", SCHEMA)
    table.append(table_of(ROWS))
    delete_positions(table, {file.file_path: [0, 3] for file in live_files(table)})
    location = Path(table.location().removeprefix("file://"))
    assert rows(adopt(lake, location, format="iceberg")) == ROWS[1:3] + ROWS[4:]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", KINDS)
def test_adopted_table_goes_on_like_any_other(lake: kt.Lake, tmp_path: Path, kind: str) -> None:
    given = random.Random(2).sample([*ROWS, TOMBSTONE], len(ROWS) + 1)
    location = as_parquet(tmp_path / "theirs", [given[:3], given[3:9], given[9:]])
    table = adopt(lake, location, options=KINDS[kind])
    assert rows(table) == ROWS
    stored = [pq.read_table(file).column("k").to_pylist() for file in data_files(lake)]
    assert all(keys == sorted(keys) for keys in stored)
    late, fresh, gone = (1, 9, None, "late"), (2, 21, None, "fresh"), (3, 31, True, None)
    too_late, back = (12, 119, None, "too late"), (4, 41, None, "back")
    table.write(table_of([late, fresh, gone, too_late]))
    table.write(table_of([(4, 40, True, None), back]))
    expected = sorted([ROWS[0], ROWS[1], fresh, back, *ROWS[5:]])
    assert rows(table) == expected
    table.compact()
    assert rows(table) == expected
    table.write(table_of([(12, 121, None, "again")]))
    assert rows(table)[-1] == (12, 121, None, "again")
    assert table.verify().is_healthy


def test_deletes_are_dead_from_the_start_where_readers_merge_nothing(
    lake: kt.Lake, tmp_path: Path
) -> None:
    location = as_parquet(tmp_path / "theirs", [[*ROWS, TOMBSTONE]])
    table = adopt(lake, location, options=KINDS["vectors"])
    (entry,) = table.scan().live.entries
    assert (entry.file.row_count, entry.file.delete_row_count) == (13, 0)
    assert rows(table) == ROWS


@pytest.mark.parametrize("kind", ["one bucket", "index"])
@pytest.mark.parametrize("last", [[2000, 2001], [2000, -1]], ids=["sorted", "nearly sorted"])
def test_rows_are_stored_once_whether_they_stay_in_order_or_not(
    lake: kt.Lake, tmp_path: Path, kind: str, last: list[int]
) -> None:
    """What was written straight away goes where a row had to come before it."""
    keys = [*range(2000), *last]
    given = [(k, 1, None, f"{k * k:030}") for k in keys]
    location = as_parquet(tmp_path / "theirs", [given[:1500], given[1500:2001], given[2001:]])
    options = {**KINDS[kind], "bucket": "2", "read.memory": "1 mb", "target-file-size": "10 kb"}
    table = adopt(lake, location, options=options)
    assert rows(table) == sorted(given)
    live = {entry.file.file_name for entry in table.scan().live.entries}
    assert len(live) > 2
    assert {file.name for file in data_files(lake)} == live
    assert table.verify().is_healthy


def test_values_of_all_kinds_pass_over_local_disk(lake: kt.Lake, tmp_path: Path) -> None:
    noon = datetime(2026, 1, 31, 12, 0, 0, 7)
    given = [
        {"k": key, "list": [n, None], "map": [(key, n)], "struct": {"a": n, "b": [key]},
         "decimal": Decimal(n) / 100, "time": noon, "instant": noon.replace(tzinfo=timezone.utc),
         "bytes": key.encode(), "float": [0.5, float("inf")][n % 2]}
        for n, key in enumerate(["b", "a", "d", "c"])
    ]  # fmt: skip
    types = {
        "k": pa.string(), "list": pa.list_(pa.int32()), "map": pa.map_(pa.string(), pa.int64()),
        "struct": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        "decimal": pa.decimal128(20, 2), "time": pa.timestamp("us"),
        "instant": pa.timestamp("us", "UTC"), "bytes": pa.binary(), "float": pa.float64(),
    }  # fmt: skip
    (tmp_path / "theirs").mkdir()
    for part in (0, 2):
        rows_ = pa.Table.from_pylist(given[part : part + 2], schema=pa.schema(types))
        pq.write_table(rows_, tmp_path / f"theirs/{part}.parquet")
    lake.adopt(
        "t", format="parquet", location=tmp_path / "theirs", primary_key=["k"],
        options={"read.memory": "1 kb"},
    )  # fmt: skip
    found = managed(lake).scan().to_pylist()
    assert sorted(found, key=lambda row: row["k"]) == sorted(given, key=lambda row: row["k"])


PRODUCERS = [{"changelog-producer": each} for each in ("none", "input", "lookup")]


@pytest.mark.parametrize("options", [*PRODUCERS, KINDS["index"]], ids=str)
def test_first_snapshot_tells_of_the_rows_as_new(
    lake: kt.Lake, tmp_path: Path, options: dict[str, str]
) -> None:
    table = adopt(lake, as_parquet(tmp_path / "theirs", [ROWS]), options=options)
    told = table.changes(0, 1).to_arrow().to_pylist()
    assert sorted(row["k"] for row in told) == [*range(12)]
    assert {row["_row_kind"] for row in told} == {"+I"}


KEY = st.tuples(st.integers(0, 3), st.text("ab", max_size=2))


@pytest.mark.takes_turns
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    held=st.dictionaries(KEY, st.booleans(), max_size=20),
    later=st.lists(st.tuples(KEY, st.integers(0, 9), st.booleans()), max_size=6),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    seed=st.integers(0, 9),
)
def test_adopted_rows_are_worth_what_written_ones_are(
    tmp_path_factory: pytest.TempPathFactory,
    held: dict[tuple[int, str], bool],
    later: list[tuple[tuple[int, str], int, bool]],
    cuts: list[int],
    seed: int,
) -> None:
    """Whatever comes later finds the same in both: one row of a key, the freshest, or none."""
    schema = pa.schema(
        [("p", pa.int64()), ("k", pa.string()), ("w", pa.int64()), ("d", pa.bool_())]
    )
    folder = tmp_path_factory.mktemp("lake")
    given_ = [{"p": p, "k": k, "w": 5, "d": dead} for (p, k), dead in held.items()]
    random.Random(seed).shuffle(given_)
    ends = sorted({0, len(given_), *(min(cut, len(given_)) for cut in cuts)})
    (folder / "theirs").mkdir()
    pq.write_table(schema.empty_table(), folder / "theirs/e.parquet")
    for begin, end in itertools.pairwise(ends):
        part = pa.Table.from_pylist(given_[begin:end], schema=schema)
        pq.write_table(part, folder / f"theirs/{begin}.parquet")
    lake = kt.connect(folder / "lake")
    keys = {"watermark.key": "w", "tombstone.key": "d", "bucket": "2", "read.memory": "1 kb"}
    lake.adopt(
        "adopted", format="parquet", location=folder / "theirs", primary_key=["p", "k"],
        partition_by=["p"], options=keys,
    )  # fmt: skip
    lake.create_table_as("written", given_, schema, ["p", "k"], ["p"], keys)
    more = [{"p": p, "k": k, "w": w, "d": dead} for (p, k), w, dead in later]
    found = []
    for name in ("adopted", "written"):
        table = managed(lake, name)
        table.write(more)
        shown = rows(table)
        table.compact()
        assert rows(table) == shown
        found.append(shown)
    assert found[0] == found[1]


# -- what is refused -------------------------------------------------------------------------------


def refused(lake: kt.Lake, location: Path, match: str, **more: Any) -> None:
    with pytest.raises(kt.KeytideError, match=match):
        adopt(lake, location, **more)
    assert "default.t" not in (lake.tables() if lake.exists else [])
    assert data_files(lake) == []


@pytest.mark.parametrize("kind", KINDS)
def test_keys_with_several_rows_are_refused_by_name(
    lake: kt.Lake, tmp_path: Path, kind: str
) -> None:
    again = [[*ROWS[:5]], [(2, 1, None, "again")], [*ROWS[5:], (7, 1, True, None)]]
    location = as_parquet(tmp_path / "theirs", again)
    refused(lake, location, r"theirs are .*k = [27]", options=KINDS[kind])


def test_key_at_the_end_of_one_piece_and_the_start_of_another_is_refused(
    lake: kt.Lake, tmp_path: Path
) -> None:
    location = as_parquet(tmp_path / "theirs", [[ROWS[1], ROWS[5]], [ROWS[5], ROWS[9]]])
    refused(lake, location, "k = 5", options={"read.memory": "1 kb"})


def test_keys_that_an_index_takes_for_one_are_refused(lake: kt.Lake, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    spelt = ["0A000000-0000-0000-0000-000000000000", "0a000000-0000-0000-0000-000000000000"]
    pq.write_table(pa.table({"k": spelt}), tmp_path / "theirs/1.parquet")
    options = {"upsert.mode": "full", "upsert.hash-function": "uuid"}
    with pytest.raises(kt.InvalidError, match=r"1 rows of .* in a different spelling"):
        lake.adopt(
            "t", format="parquet", location=tmp_path / "theirs", primary_key=["k"], options=options
        )
    assert data_files(lake) == []


def test_null_in_a_key_is_refused(lake: kt.Lake, tmp_path: Path) -> None:
    location = as_parquet(tmp_path / "theirs", [ROWS, [(None, 1, None, "x")]])
    refused(lake, location, "'k' is BIGINT NOT NULL and 1 of 1 rows are NULL")


def test_file_that_cannot_be_read_leaves_nothing(lake: kt.Lake, tmp_path: Path) -> None:
    location = as_parquet(tmp_path / "theirs", [ROWS, [(99, 1, None, "x" * 5000)]])
    torn = location / "1.parquet"
    data = bytearray(torn.read_bytes())
    data[4:300] = bytes(296)
    torn.write_bytes(data)
    refused(lake, location, "1.parquet")


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"primary_key": []}, "requires a primary key"),
        ({"primary_key": ["x"]}, r"do not exist: \[x\]"),
        ({"format": "orc"}, "not a format"),
        ({"location": "/nowhere/at/all"}, "there are no files at"),
        ({"options": {"external.option.delimiter": ";"}}, "no option 'delimiter'"),
        ({"options": {"external.option.token": "x"}}, "can be a secret"),
        ({"options": {"watermark.key": "w"}}, "given both as an argument and as an option"),
        ({"options": {"bukket": "1"}}, "bukket"),
        (
            {**NO_VERSIONS, "partition_by": ["v"], "options": {"bucket": "-1"}},
            "partition columns v are not in the primary key",
        ),
        ({"options": {"sequence.auto-padding": "second-to-micro"}}, "numbers rows when they are"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    lake: kt.Lake, tmp_path: Path, more: dict[str, Any], match: str
) -> None:
    location = as_parquet(tmp_path / "theirs", [ROWS])
    refused(lake, **{"location": location, "match": match, **more})


def test_place_that_holds_the_new_table_is_refused(lake: kt.Lake, tmp_path: Path) -> None:
    as_parquet(tmp_path / "lake", [ROWS])
    with pytest.raises(kt.InvalidError, match="neither can contain the other"):
        adopt(lake, tmp_path / "lake")


def test_name_that_is_taken_is_refused(lake: kt.Lake, tmp_path: Path) -> None:
    location = as_parquet(tmp_path / "theirs", [ROWS])
    table = adopt(lake, location)
    with pytest.raises(kt.AlreadyExistsError):
        adopt(lake, location)
    assert rows(table) == ROWS


def test_nothing_makes_an_empty_table(lake: kt.Lake, tmp_path: Path) -> None:
    location = as_delta(tmp_path / "theirs", [[]])
    done = lake.adopt("t", format="delta", location=location, **KEYS)
    assert (done.version, done.snapshot_id, done.rows, done.files) == ("0", None, 0, 0)
    assert rows(managed(lake)) == []


# -- what goes wrong -------------------------------------------------------------------------------


def _writes(tmp_path: Path, location: Path) -> int:
    store = FaultyStore(open_store(str(tmp_path / "counted")))
    adopt(kt.connect("unused", store=store), location)
    return sum(operation in ("create", "put", "output") for operation, _ in store.log)


@pytest.mark.parametrize("action", ["fail", "disk-full", "lost-response", "crash"])
def test_fault_at_any_write_leaves_a_whole_table_or_none(tmp_path: Path, action: str) -> None:
    location = as_parquet(tmp_path / "theirs", [ROWS[:6], ROWS[6:]])
    for nth in range(1, _writes(tmp_path, location) + 1):
        path = tmp_path / f"lake-{nth}"
        path.mkdir()
        fault = Fault("write", nth=nth, action=action)  # type: ignore[arg-type]  # from a list
        store = FaultyStore(open_store(str(path)), [fault])
        try:
            adopt(kt.connect("unused", store=store), location)
            failed = False
        except (kt.DataError, Crash):
            failed = True
        lake = kt.connect(path)
        if "default.t" in lake.tables():
            # A process that dies between the definition and the snapshot leaves an empty table.
            assert rows(managed(lake)) == ROWS or (action == "crash" and not rows(managed(lake)))
        else:
            assert failed
            assert action in ("lost-response", "crash") or data_files(lake) == []


# -- SQL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", WRITERS)
def test_procedure_of_each_format_adopts(lake: kt.Lake, tmp_path: Path, format_: str) -> None:
    location = WRITERS[format_](tmp_path / "theirs", [[*ROWS, (12, 120, True, "v12")]])
    done = lake.sql(
        f"CALL sys.adopt_{format_}('t', '{location}', primary_key => 'v, k', tombstone_key => 'd', "
        f"watermark_key => 'w', partitioned_by => 'v', comment => 'theirs', "
        f"options => 'bucket=2, file-index.bloom-filter.columns=k,w,file.format=orc')"
    )
    (told,) = done.to_pylist()
    assert (told["rows"], told["snapshot_id"], told["files"]) == (13, 1, 13)
    table = managed(lake)
    assert rows(table) == ROWS
    schema = table.metadata.latest_schema()
    assert (schema.primary_keys, schema.partition_keys, schema.comment) == (
        ("v", "k"), ("v",), "theirs",
    )  # fmt: skip
    assert schema.options["file-index.bloom-filter.columns"] == "k,w"
    assert schema.options["file.format"] == "orc"


@pytest.mark.parametrize("text", ["bucket", "=2", "bucket=2,bucket=3", ",bucket=2"])
def test_options_that_are_none_are_refused(lake: kt.Lake, tmp_path: Path, text: str) -> None:
    location = as_parquet(tmp_path / "theirs", [ROWS])
    with pytest.raises(kt.InvalidError, match=r"sys\.adopt_parquet: options are"):
        lake.sql(f"CALL sys.adopt_parquet('t', '{location}', 'k', options => '{text}')")


def test_table_of_a_catalog_is_adopted_by_its_name(lake: kt.Lake, tmp_path: Path) -> None:
    as_iceberg(tmp_path / "theirs", [ROWS])
    options = f"external.option.catalog.uri=sqlite:///{tmp_path}/theirs/c.db"
    lake.sql(f"CALL sys.adopt_iceberg('t', 'n.t', 'k', options => '{options}')")
    assert rows(managed(lake)) == ROWS
