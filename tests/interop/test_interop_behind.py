"""What is left of writers that were killed while they compacted behind themselves reads alike."""

from __future__ import annotations

import os
import random
import time

import pytest
from interop_judges import Judge, assert_reads_alike, canonical

import keytide as kt
from killed_writers import Killed, new_table, rows_of


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", ["last", "sums", "placed"])
def test_interop_tables_of_killed_writers_read_alike(
    judge: Judge, warehouse: str, kind: str
) -> None:
    seed = int(os.environ.get("KEYTIDE_SEED", time.time_ns() % 1_000_000))
    print(f"KEYTIDE_SEED={seed}")
    table = new_table(warehouse, kind)
    killed = Killed(table, kind, random.Random(seed))
    killed.kill(writers=2, times=0)
    assert_reads_alike(judge, table)
    assert len(table.snapshots()) > 1
    chosen = random.Random(seed).choice(table.snapshots())
    theirs, scan = judge.read(table.name, snapshot_id=chosen.id), table.scan(snapshot_id=chosen.id)
    assert canonical(theirs, scan.schema) == canonical(scan.to_arrow(), scan.schema)
    table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)
    assert_reads_alike(judge, table)
    assert rows_of(kt.open_table(table.uri).scan()) == killed.expected()
