"""Ids of snapshots come back after a rollback, and every process is told of those that are there.

The same holds for what else a process has in mind: snapshots that have expired, options that were
changed, and tables that were dropped and created again.

A process remembers what it has read by the address of its lake. So lakes that are reached by links
of different names are those of different processes, each with a memory of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.format import paths
from keytide.format.snapshot import Snapshot
from keytide.store.local import LocalStore

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])

VERBS: dict[str, Callable[[kt.Table, int], object]] = {
    "write": lambda t, n: t.write([{"k": n % 3, "v": n}]),
    "roll back": lambda t, n: t.rollback_to(t.snapshots()[n % len(t.snapshots())].id),
    "compact": lambda t, n: t.compact(full=True),
    "list": lambda t, n: t.snapshots(),
    "read": lambda t, n: t.scan().to_pylist(),
    "tag": lambda t, n: t.create_tag(f"tag-{n}", t.snapshots()[n % len(t.snapshots())].id),
    "expire": lambda t, n: t.expire_snapshots(retain_max=1 + n % 2, retain_min=1),
    "alter": lambda t, n: t.alter(SetOption("user.note", str(n))),
    "drop and create": lambda t, n: again(t),
}


def new_table(lake: kt.Lake) -> kt.Table:
    return lake.create_table("t", SCHEMA, ["k"], options={"write-only": "true"})


def again(table: kt.Table) -> None:
    """The table is dropped and created, and written to."""
    lake = kt.connect(table.uri.rsplit("/default.db", 1)[0])
    lake.drop_table("t")
    new_table(lake).write([{"k": 0, "v": -1}])


STEP = st.tuples(st.integers(0, 2), st.sampled_from([*VERBS, "write", "roll back"]))


class Processes:
    """Tables of several processes, which are one table."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.numbers = folder, count()
        (folder / "lake").mkdir()
        new_table(self.process())

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


def ids_and_uuids(table: kt.Table) -> list[tuple[int, str | None]]:
    return [(snapshot.id, snapshot.uuid) for snapshot in table.snapshots()]


def test_snapshot_of_another_process_has_the_id_of_one_that_was_rolled_back(tmp_path: Path) -> None:
    here = Processes(tmp_path)
    one, other = here.process().table("t"), here.process().table("t")
    for n in range(3):
        one.write([{"k": n, "v": n}])
    one.snapshots()
    one.rollback_to(2)
    other.write([{"k": 7, "v": 7}])
    assert ids_and_uuids(one) == here.stored()


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
                assert ids_and_uuids(table) == here.stored()
                assert everything(table) == everything(fresh)


def everything(table: kt.Table) -> dict[str, object]:
    """Everything that there is to see, by how it is asked for. Changes between any two places."""
    ids = [snapshot.id for snapshot in table.snapshots()]
    tags = [tag.name for tag in table.tags()]
    places = [ids[0], ids[-1], *tags[:2]]
    rows = {f"snapshot {n}": sorted_rows(table.scan(snapshot_id=n)) for n in (ids[0], ids[-1])}
    rows |= {f"tag {tag}": sorted_rows(table.scan(tag=tag)) for tag in tags}
    ways = [(start, end) for start in places for end in places]
    return rows | {f"changes {way}": outcome(partial(table.changes, *way)) for way in ways}


def outcome(look: Callable[[], object]) -> object:
    """The rows, or the kind of the refusal."""
    try:
        return sorted_rows(look())
    except kt.InvalidError as error:
        return type(error).__name__


def sorted_rows(found: object) -> list[str]:
    return sorted(map(repr, found.to_arrow().to_pylist()))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("which", "lost"),
    [
        ("[35]", []),
        ("[35]", ["LATEST"]),
        ("[37]", ["EARLIEST"]),
        ("[37]", ["LATEST", "EARLIEST"]),
    ],
)
def test_leftovers_of_an_expiry_are_never_the_latest_snapshot(
    which: str, lost: list[str], tmp_path: Path
) -> None:
    processes = Processes(tmp_path)
    table = processes.process().table("t")
    for number in range(8):
        table.write([{"k": number, "v": number}])
    folder = next((tmp_path / "lake").glob("*/t")) / paths.snapshot_dir()
    left = {path: path.read_bytes() for path in folder.glob(f"snapshot-{which}")}
    table.expire_snapshots(retain_max=1, retain_min=1)

    for path, data in left.items():
        path.write_bytes(data)
    for name in lost:
        (folder / name).unlink()

    other = processes.process().table("t")
    assert len(other.scan().to_pylist()) == 8
    other.write([{"k": 8, "v": 8}])
    assert len(processes.process().table("t").scan().to_pylist()) == 9


def test_expiry_deletes_last_what_leads_to_the_kept_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Processes(tmp_path).process().table("t")
    for number in range(4):
        table.write([{"k": number, "v": number}])
    deleted: list[list[str]] = []
    delete = LocalStore.delete

    def recorded(store: LocalStore, files: Iterable[str]) -> None:
        deleted.append(list(files))
        delete(store, deleted[-1])

    monkeypatch.setattr(LocalStore, "delete", recorded)
    table.expire_snapshots(retain_max=1, retain_min=1)

    of_snapshots = [
        sorted(file.rpartition("-")[2] for file in files)
        for files in deleted
        if any("snapshot-" in file for file in files)
    ]
    assert of_snapshots == [["1", "2"], ["3"]]
