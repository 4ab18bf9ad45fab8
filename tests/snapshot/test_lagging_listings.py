"""A store whose listings lag: what it did not list yet is there, and what it still lists is not."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import keytide as kt
import life
from keytide.definition.schema_evolution import SetOption
from keytide.snapshot.lineage import forget_lineages
from keytide.store import open_store
from keytide.store.faults import FaultyStore
from lagging import LaggingFolder
from new_tables import empty_store, fields_of

pytestmark = pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")


def test_listings_lag(tmp_path: Path) -> None:
    """What the tests below stand on."""
    store = LaggingFolder(str(tmp_path))
    store.put("a/new", b"1")
    seen = {tuple(store.list_names("a")) for _ in range(50)}
    time.sleep(0.5)
    assert seen == {(), ("new",)}
    assert store.list_names("a") == ["new"]
    store.delete(["a/new"])
    seen = {tuple(store.list_names("a")) for _ in range(50)}
    assert seen == {(), ("new",)}
    assert not store.exists("a/new")


@pytest.mark.parametrize(
    "steps",
    [40, pytest.param(4_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])],
    ids=["briefly", "long"],
)
def test_invariants_hold_where_listings_lag(tmp_path: Path, steps: int) -> None:
    seed = int(os.environ.get("KEYTIDE_SEED", time.time_ns() % 1_000_000))
    print(f"KEYTIDE_SEED={seed}")
    random.seed(seed)
    warehouse = f"{life.LAGGING}:{tmp_path}"
    life.make_tables(warehouse)
    process = life.Life(warehouse, "process-0", seed)
    process.live(steps)
    for name in life.TABLES:
        table = kt.connect("", store=open_store(str(tmp_path))).table(name)
        assert {row["k"]: row for row in table.scan().to_pylist()} == process.models[name]
        assert table.verify().is_healthy


@pytest.mark.takes_turns
def test_a_table_is_found_by_who_looks_first(tmp_path: Path) -> None:
    """Its newest schema and snapshot too, though the process has nothing to go by."""
    schema = fields_of("k INT, v INT")
    for number in range(20):
        folder = tmp_path / str(number)
        table = kt.connect("", store=LaggingFolder(str(folder))).create_table("t", schema, ["k"])
        table.alter(SetOption("snapshot.num-retained.min", "7"))
        table.write([{"k": 1, "v": number}])
        # Another spelling of the folder is that of a process that has seen nothing yet.
        (tmp_path / f"link-{number}").symlink_to(folder)
        other = kt.connect("", store=LaggingFolder(str(tmp_path / f"link-{number}"))).table("t")
        assert other.options["snapshot.num-retained.min"] == "7"
        assert other.get(1) == {"k": 1, "v": number}


@pytest.mark.takes_turns
@pytest.mark.parametrize("rolled_back", [1, 2, 5, 30])
def test_latest_snapshot_is_found_in_a_listing_from_before_a_rollback(rolled_back: int) -> None:
    store = empty_store()
    schema = fields_of("k INT, v INT")
    alone = {"write-only": "true"}
    table = kt.connect("", store=store).create_table("t", schema, ["k"], options=alone)
    for number in range(40):
        table.write([{"k": 1, "v": number}])
    listed = store.list_names("default.db/t/snapshot")

    class FromBefore(FaultyStore):
        def list_names(self, directory: str = "") -> list[str]:
            is_of_snapshots = directory.strip("/").endswith("snapshot")
            return listed if is_of_snapshots else super().list_names(directory)

    table.rollback_to(40 - rolled_back)
    store.delete(["default.db/t/snapshot/LATEST"])
    forget_lineages()
    found = kt.connect("", store=FromBefore(store)).table("t")
    assert found.get(1) == {"k": 1, "v": 39 - rolled_back}
