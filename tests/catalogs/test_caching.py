"""A lake with a cache answers as one without, and asks its store less."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.format.cache import forget_files
from keytide.snapshot.lineage import forget_lineages
from keytide.store import CachedStore, LocalStore, Store, open_store
from keytide.store.faults import FaultyStore
from new_tables import empty_store, table_in
from table_rows import rows

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
NAMED_BY_METADATA = re.compile(r"/(bucket-\d+|manifest|index|statistics)/[^/]+$")


@pytest.fixture
def far() -> FaultyStore:
    return FaultyStore(empty_store())


def open_near(store: Store, cache: Path, **arguments: int | str) -> kt.Lake:
    return kt.connect("", store=store, cache=cache, **arguments)  # type: ignore[arg-type]


def filled(store: Store, **options: str) -> kt.Table:
    lake = kt.connect("", store=store)
    table = lake.create_table("t", SCHEMA, ["k"], options={"bucket": "2", **options})
    for start in (0, 1_000):
        table.write([{"k": k, "v": f"{start} {k}"} for k in range(start, start + 2_000)])
    table.delete("k < 10")
    return table


def as_a_new_process() -> None:
    forget_files()
    forget_lineages()


def asked_of_files(store: FaultyStore) -> list[str]:
    asked = [path for operation, path in store.log if operation in ("read", "input")]
    return [path for path in asked if NAMED_BY_METADATA.search(path)]


# -- fewer requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deletion-vectors.enabled": "true"},
        {"bucket": "-1"},
        {"file.format": "orc"},
        {"file-index.bloom-filter.columns": "v"},
    ],
    ids=str,
)
def test_second_read_asks_for_no_file_that_never_changes(
    far: FaultyStore, tmp_path: Path, options: dict[str, str]
) -> None:
    filled(far, **options)
    expected = rows(table_in(far))
    for number in range(3):
        far.log.clear()
        as_a_new_process()
        table = open_near(far, tmp_path / "cache").table("t")
        assert rows(table) == expected
        assert table.get(1_500) == {"k": 1_500, "v": "1000 1500"}
        assert rows(table.scan(where="v = '0 20'")) == [(20, "0 20")]
        assert bool(asked_of_files(far)) is (number == 0)
    far.log.clear()
    as_a_new_process()
    assert rows(table_in(far)) == expected
    assert asked_of_files(far)


def test_new_commit_is_seen_at_once(far: FaultyStore, tmp_path: Path) -> None:
    writer = filled(far)
    table = open_near(far, tmp_path / "cache").table("t")
    assert (20, "0 20") in rows(table)
    writer.write([{"k": 20, "v": "new"}])
    assert (20, "new") in rows(table)


def test_branch_shares_the_copies(far: FaultyStore, tmp_path: Path) -> None:
    filled(far).create_branch("b")
    lake = open_near(far, tmp_path / "cache")
    expected = rows(lake.table("t"))
    far.log.clear()
    assert rows(lake.table("t$branch_b")) == expected
    assert asked_of_files(far) == []


# -- the store itself ------------------------------------------------------------------------------


def test_verify_looks_at_the_store(far: FaultyStore, tmp_path: Path) -> None:
    filled(far)
    table = open_near(far, tmp_path / "cache").table("t")
    expected = rows(table)
    assert table.verify().is_healthy
    lost = next(info.path for info in far.list() if "/bucket-" in info.path)
    kept = far.read(lost)
    far.inner.delete([lost])
    assert rows(table) == expected
    for quick in (True, False):
        assert [f.path.rpartition("/")[2] for f in table.verify(quick=quick).findings] == [
            lost.rpartition("/")[2]
        ]
    far.inner.put(lost, kept)
    manifest = next(info.path for info in far.list() if "/manifest-list-" in info.path)
    far.inner.put(manifest, b"torn")
    assert rows(table) == expected
    assert not table.verify(quick=True).is_healthy


def test_orphan_cleaning_looks_at_the_store(far: FaultyStore, tmp_path: Path) -> None:
    filled(far)
    # Under another name, of which this process has no manifests in memory.
    moved = empty_store()
    moved.put_all({info.path: far.read(info.path) for info in far.list()})
    lake = open_near(moved, tmp_path / "cache")
    for path in [info.path for info in moved.list() if "/manifest/" in info.path]:
        assert lake.catalog.warehouse.store.read(path)
        moved.put(path, b"torn")
    orphan = f"default.db/t/bucket-0/data-{uuid4()}-0.parquet"
    moved.put(orphan, b"left over")
    with pytest.raises(kt.DataError, match="/manifest/"):
        lake.table("t").remove_orphan_files(datetime.now(timezone.utc), dry_run=False)
    assert moved.exists(orphan)
    with pytest.raises(kt.DataError, match="/manifest/"):
        lake.table("t").doctor()
    assert len(rows(lake.table("t"))) == 2_990


def test_torn_data_file_is_read_anew_once_it_is_restored(far: FaultyStore, tmp_path: Path) -> None:
    filled(far)
    table = open_near(far, tmp_path / "cache").table("t")
    expected = rows(table_in(far))
    torn = next(info.path for info in far.list() if "/bucket-" in info.path)
    whole = far.read(torn)
    far.inner.put(torn, whole[:-9])
    as_a_new_process()
    with pytest.raises(kt.DataError, match="damaged"):
        rows(table)
    far.inner.put(torn, whole)
    assert rows(table) == expected


def test_table_of_the_same_name_is_another_one(far: FaultyStore, tmp_path: Path) -> None:
    lake = open_near(far, tmp_path / "cache")
    for value in ("one", "two"):
        table = lake.create_table("t", SCHEMA, ["k"])
        table.write([{"k": 1, "v": value}])
        assert rows(table) == [(1, value)]
        lake.drop_table("t")
    with pytest.raises(kt.NotFoundError):
        lake.table("t")


# -- any history -----------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "delete", "compact", "expire", "anew", "elsewhere"]),
        st.integers(0, 40),
    ),
    min_size=3,
    max_size=15,
)


@pytest.mark.takes_turns
@given(steps=STEPS, vectors=st.booleans(), bytes_max=st.sampled_from([1 << 20, "10 gb"]))
def test_lake_with_a_cache_answers_as_one_without(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    vectors: bool,
    bytes_max: int | str,
) -> None:
    store = empty_store()
    cache = tmp_path_factory.mktemp("cache")
    lake = open_near(store, cache, cache_bytes=bytes_max)
    options = {"bucket": "1", "deletion-vectors.enabled": str(vectors).lower()}
    lake.create_table("t", SCHEMA, ["k"], options=options)
    model: dict[int, str] = {}
    for number, (step, k) in enumerate(steps):
        # One object that lives on, and one for each step.
        table = (lake if k % 2 else open_near(store, cache, cache_bytes=bytes_max)).table("t")
        if step in ("write", "elsewhere"):
            new = {key: f"{number} {key} " * 20 for key in range(k, k + 5 * k)}
            writer = table if step == "write" else table_in(store)
            writer.write(pa.table({"k": [*new], "v": [*new.values()]}, schema=SCHEMA))
            model |= new
        elif step == "delete":
            table.delete(f"k = {k}")
            model.pop(k, None)
        elif step == "compact":
            table.compact(full=True)
        elif step == "expire":
            table.expire_snapshots(retain_max=1, retain_min=1)
        else:
            lake.drop_table("t")
            lake.create_table("t", SCHEMA, ["k"], options=options)
            model = {}
        expected = sorted(model.items())
        assert rows(lake.table("t")) == expected
        assert rows(open_near(store, cache).table("t")) == expected
        assert rows(table_in(store)) == expected
    assert lake.table("t").verify().is_healthy


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache": ""}, "cache is ''; expected a local folder"),
        ({"cache": " "}, "cache is ' '; expected a local folder"),
        ({"cache": "a\0b"}, r"cache is 'a\\x00b'; expected a local folder"),
        ({"cache": "s3://bucket/x"}, "cache is 's3://bucket/x'; expected a local folder"),
        ({"cache": "{file}"}, "cache is '.*', and .*/file is not a folder"),
        ({"cache": "{file}/below/it"}, "cache is '.*', and .*/file is not a folder"),
        ({"cache": 5}, "cache is 5 of type int; expected a string or a path"),
        ({"cache_bytes": "10 gb"}, "cache_bytes is '10 gb', but cache is not set"),
        ({"cache": "c", "cache_bytes": "much"}, "cache_bytes is 'much'; expected a size such as"),
        ({"cache": "c", "cache_bytes": 0}, "cache_bytes is 0; expected a size of at least 1048576"),
        ({"cache": "c", "cache_bytes": "1023 kb"}, "cache_bytes is '1023 kb'; expected a size"),
        ({"cache": "c", "cache_bytes": -1}, "cache_bytes is -1; expected a size"),
        ({"cache": "c", "cache_bytes": True}, "cache_bytes is True of type bool"),
        ({"cache": "c", "cache_bytes": 2**70}, "cache_bytes is .*; expected a 64-bit integer"),
    ],
    ids=str,
)
def test_wrong_argument_is_told(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    (tmp_path / "file").touch()
    given = {
        name: value.format(file=tmp_path / "file") if isinstance(value, str) else value
        for name, value in arguments.items()
    }
    for call in (kt.connect, kt.open_table):
        with pytest.raises(kt.InvalidError, match=message):
            call("memory://x", **given)  # type: ignore[operator]


def test_cache_of_a_lake_on_local_disk_is_refused(tmp_path: Path) -> None:
    for place in (str(tmp_path), f"file:{tmp_path}"):
        with pytest.raises(kt.InvalidError, match=f"cache: {tmp_path} is on the local disk"):
            kt.connect(place, cache=tmp_path / "cache")
        with pytest.raises(kt.InvalidError, match="is on the local disk"):
            kt.open_table(f"{place}/t", cache=tmp_path / "cache")
    with pytest.raises(kt.InvalidError, match="is on the local disk"):
        kt.connect("", store=LocalStore(str(tmp_path)), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("given", "expected"), [(None, 10 << 30), ("20 gb", 20 << 30), (1 << 20, 1 << 20)]
)
def test_bound_is_a_number_or_a_size(
    tmp_path: Path, given: int | str | None, expected: int
) -> None:
    store = kt.connect("memory://x", cache=tmp_path, cache_bytes=given).catalog.warehouse.store
    assert isinstance(store, CachedStore)
    assert (store.cache.root, store.cache.bytes_max) == (str(tmp_path), expected)
    assert [*tmp_path.iterdir()] == []


def test_table_is_opened_with_a_cache_by_its_address(tmp_path: Path) -> None:
    name = uuid4().hex
    filled(open_store(f"memory://{name}"))
    table = kt.open_table(f"memory://{name}/default.db/t", cache=tmp_path / "cache")
    assert len(rows(table)) == 2_990
    assert [*(tmp_path / "cache").rglob("*.sum")]
