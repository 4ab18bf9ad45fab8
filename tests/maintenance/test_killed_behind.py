"""Writers that are killed while they compact behind themselves lose nothing that they told."""

from __future__ import annotations

import os
import random
import time

import pytest

from histories import stray_files
from killed_writers import KINDS, Killed, new_table, rows_of

LONG = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", KINDS)
def test_writers_killed_while_they_compact_lose_nothing(warehouse: str, kind: str) -> None:
    lives(warehouse, kind, writers=2, times=0)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=LONG) for kind in KINDS])
def test_writers_killed_again_and_again_lose_nothing(warehouse: str, kind: str) -> None:
    stray, deaths = lives(warehouse, kind, writers=3, times=10)
    assert stray > 0, "some compaction was killed before its commit"
    assert deaths > 5


def lives(warehouse: str, kind: str, writers: int, times: int) -> tuple[int, int]:
    """Kill writers and look at what they leave; gives stray files and deaths in compactions."""
    seed = int(os.environ.get("KEYTIDE_SEED", time.time_ns() % 1_000_000))
    print(f"KEYTIDE_SEED={seed}")
    table = new_table(warehouse, kind)
    killed = Killed(table, kind, random.Random(seed))
    killed.kill(writers, times)

    found = table.verify()
    assert found.is_healthy, found
    time.sleep(0.002)
    stray = stray_files(table.stored.store)
    table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)
    assert stray_files(table.stored.store) == set()
    killed.check()
    snapshots = table.snapshots()
    for snapshot in random.Random(seed).sample(snapshots, min(10, len(snapshots))):
        assert rows_of(table.scan(snapshot_id=snapshot.id)) == killed.expected(snapshot)
    table.compact(full=True)
    killed.check()
    assert table.verify().is_healthy
    print(f"{kind}: {writers} writers at once, {times + writers} kills, {killed.deaths} of them in "
          f"compactions; {len(snapshots)} snapshots, {len(stray)} stray files")  # fmt: skip
    return len(stray), killed.deaths
