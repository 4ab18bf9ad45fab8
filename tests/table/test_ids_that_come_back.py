"""Ids of snapshots come back after a rollback, and every process is told of those that are there.

A process remembers what it has read by the address of its lake. So lakes that are reached by links
of different names are those of different processes, each with a memory of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.format import paths
from keytide.format.snapshot import Snapshot

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])

VERBS: dict[str, Callable[[kt.Table, int], object]] = {
    "write": lambda t, n: t.write([{"k": n % 3, "v": n}]),
    "roll back": lambda t, n: t.rollback_to(1 + n % len(t.snapshots())),
    "compact": lambda t, n: t.compact(full=True),
    "list": lambda t, n: t.snapshots(),
    "read": lambda t, n: t.scan().to_pylist(),
}
STEP = st.tuples(st.integers(0, 2), st.sampled_from([*VERBS, "write", "roll back"]))


class Processes:
    """Tables of several processes, which are one table."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.numbers = folder, count()
        (folder / "lake").mkdir()
        self.process().create_table("t", SCHEMA, ["k"], options={"write-only": "true"})

    def process(self) -> kt.Lake:
        link = self.folder / f"process-{next(self.numbers)}"
        link.symlink_to(self.folder / "lake", target_is_directory=True)
        return kt.connect(str(link))

    def stored(self) -> list[tuple[int, str | None]]:
        """The snapshots in the folder, by id and identity."""
        folder = next((self.folder / "lake").glob("*/t")) / paths.snapshot_dir()
        found = [Snapshot.from_json(path.read_bytes(), str(path))
                 for path in folder.glob("snapshot-*")]  # fmt: skip
        return sorted((snapshot.id, snapshot.uuid) for snapshot in found)


def seen(table: kt.Table) -> list[tuple[int, str | None]]:
    return [(snapshot.id, snapshot.uuid) for snapshot in table.snapshots()]


def test_snapshot_of_another_process_has_the_id_of_one_that_was_rolled_back(tmp_path: Path) -> None:
    here = Processes(tmp_path)
    one, other = here.process().table("t"), here.process().table("t")
    for n in range(3):
        one.write([{"k": n, "v": n}])
    one.snapshots()
    one.rollback_to(2)
    other.write([{"k": 7, "v": 7}])
    assert seen(one) == here.stored()


@pytest.mark.takes_turns
@settings(max_examples=8)
@given(steps=st.lists(STEP, min_size=4, max_size=16))
def test_every_process_is_told_of_the_snapshots_and_rows_that_are_there(
    steps: list[tuple[int, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Processes(Path(folder))
        tables = [here.process().table("t") for _ in range(3)]
        tables[0].write([{"k": 0, "v": -1}])
        for number, (process, verb) in enumerate(steps):
            VERBS[verb](tables[process], number)
            fresh = here.process().table("t")
            for table in tables[: 1 + number % 3]:
                assert seen(table) == here.stored()
                ids = [snapshot_id for snapshot_id, _ in here.stored()]
                for snapshot_id in (ids[0], ids[-1]):
                    asked = table.scan(snapshot_id=snapshot_id).to_pylist()
                    assert asked == fresh.scan(snapshot_id=snapshot_id).to_pylist()
