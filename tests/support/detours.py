"""Steps of processes that take the history of tables back and sideways, and what must hold of it.

Nobody knows here what the newest rows are, for anybody may roll back, restore or bring a branch in.
Instead each snapshot is held to the one before it: a write makes of its rows what its journal says,
a compaction changes none, an overwrite shows what was noted of the state that it restores. What a
snapshot has shown once it shows wherever it turns up again: in tags, branches and after rollbacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import keytide as kt
from keytide.format.snapshot import CommitKind, Snapshot

TABLES: dict[str, dict[str, str]] = {
    "turned": {"bucket": "2", "num-sorted-run.compaction-trigger": "3"},
    "turned_marked": {
        "bucket": "1", "deletion-vectors.enabled": "true",
        "deletion-vectors.merge-on-read": "true", "num-sorted-run.compaction-trigger": "3",
    },
    "turned_moving": {
        "bucket": "-1", "dynamic-bucket.target-row-num": "4",
        "num-sorted-run.compaction-trigger": "3",
    },
}  # fmt: skip
COLUMNS = (("p", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "BIGINT"))
KEYS = 16
BRANCHES = ("one", "two")

Row = dict[str, Any]
T = TypeVar("T")


class Process(Protocol):
    """What a step is told of the process that takes it."""

    lake: kt.Lake
    name: str
    done: int
    random: Any
    folder: Path

    def ask(self, table: str, rows: list[Row]) -> None:
        """Write rows under the identity of the step."""
        ...


def make_tables(lake: kt.Lake) -> None:
    """The tables of these steps; of one of them keys move between partitions."""
    fields = [kt.Field(-1, name, kt.parse_sql_type(text)) for name, text in COLUMNS]
    for name, options in TABLES.items():
        key = ["k"] if name.endswith("moving") else ["p", "k"]
        lake.create_table(name, fields, key, ["p"], options=options)


# -- steps -----------------------------------------------------------------------------------------


def write(process: Process, table: str) -> None:
    """Some rows, to the table or to one of its branches."""
    with _others_may_turn_it():
        found = _line(process, table)
        rows = [
            {"p": process.random.choice("ab"), "k": k, "v": process.done,
             "_row_kind": process.random.choice(["+I", "+I", "-D"])}
            for k in process.random.sample(range(KEYS), process.random.randint(1, 4))
        ]  # fmt: skip
        process.ask(found.name.removeprefix("default."), rows)


def compact(process: Process, table: str) -> None:
    """Fewer files."""
    with _others_may_turn_it():
        _line(process, table).compact(full=process.random.random() < 0.4)


def compact_manifests(process: Process, table: str) -> None:
    """Fewer manifests."""
    with _others_may_turn_it():
        process.lake.sql(f"CALL sys.compact_manifest('{table}')")


def tag(process: Process, table: str) -> None:
    """A name for a snapshot, or one name less."""
    with _others_may_turn_it():
        found = _line(process, table)
        tags = [each.name for each in found.tags() if each.name.startswith("process")]
        if len(tags) > 4:
            found.delete_tag(process.random.choice(tags))
        else:
            snapshot = _one_of(process, found.snapshots())
            found.create_tag(f"{process.name}-{process.done}", snapshot.id)


def restore(process: Process, table: str) -> None:
    """What a snapshot or tag showed comes back, in a commit of its own."""
    with _others_may_turn_it():
        found = _line(process, table)
        places = [s.id for s in found.snapshots()] + [each.name for each in found.tags()]
        target = _one_of(process, places)
        look_at(process, found, target)
        found.restore(target)


def roll_back(process: Process, table: str) -> None:
    """What came after a snapshot goes."""
    with _others_may_turn_it():
        found = _line(process, table)
        numbers = [s.id for s in found.snapshots()][-12:]
        found.rollback_to(_one_of(process, numbers))


def branch(process: Process, table: str) -> None:
    """A branch comes, of a tag or the newest snapshot, goes, or becomes the table."""
    with _others_may_turn_it():
        found, name = process.lake.table(table), process.random.choice(BRANCHES)
        if name not in [each.name for each in found.branches()]:
            tags = [None, *(each.name for each in found.tags())]
            found.create_branch(name, tag=process.random.choice(tags))
        elif process.random.random() < 0.6:
            found.fast_forward(name, discard=True)
        else:
            found.delete_branch(name)


def expire(process: Process, table: str) -> None:
    """Old snapshots go."""
    with _others_may_turn_it():
        _line(process, table).expire_snapshots(retain_max=30, retain_min=20, max_deletes=10)


def look(process: Process, table: str) -> None:
    """Any snapshot or tag shows what it has shown, and follows from the one before it."""
    with _others_may_turn_it():
        found = _line(process, table)
        tags = [each.name for each in found.tags()]
        if tags and process.random.random() < 0.3:
            look_at(process, found, process.random.choice(tags))
            return
        number = _one_of(process, [s.id for s in found.snapshots()])
        snapshot, rows = look_at(process, found, number)
        before, rows_before = look_at(process, found, number - 1)
        again = found.metadata.snapshot(number - 1)
        if found.metadata.snapshot(number) == snapshot and again == before:
            _check_follows(process, snapshot, rows, before, rows_before)


def verify(process: Process, table: str) -> None:
    """Every invariant, while others go on."""
    with _others_may_turn_it():
        found = process.lake.table(table).verify(quick=True)
        assert found.is_healthy, found


ACTIONS: list[tuple[Callable[[Process, str], None], int]] = [
    (write, 40), (compact, 10), (compact_manifests, 1), (tag, 6), (restore, 8), (roll_back, 4),
    (branch, 6), (expire, 3), (look, 25), (verify, 2),
]  # fmt: skip


# -- what must hold --------------------------------------------------------------------------------


@contextmanager
def _others_may_turn_it() -> Iterator[None]:
    """A step that fails where others take away what it is about, with an error that says so."""
    try:
        yield
    except (kt.ConflictError, kt.NotFoundError, kt.AlreadyExistsError):
        return
    except (kt.InvalidError, kt.UnsupportedError) as error:
        known = ("guards", "already", "no snapshots", "moves", "move", "begins", "parted")
        if not any(word in str(error) for word in known):
            raise
    except kt.DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


def _one_of(process: Process, places: Sequence[T]) -> T:
    if not places:
        raise kt.NotFoundError("there is nothing to choose from")
    chosen: T = process.random.choice(places)
    return chosen


def _line(process: Process, table: str) -> kt.Table:
    """The table, or one of its branches."""
    found = process.lake.table(table)
    names = [each.name for each in found.branches()]
    return (
        found.branch(process.random.choice(names))
        if names and process.random.random() < 0.3
        else found
    )


def look_at(process: Process, table: kt.Table, place: int | str) -> tuple[Snapshot, list[Row]]:
    """The rows of a snapshot or tag, which are those that anybody has seen of it."""
    travel = partial(table.scan, tag=place) if isinstance(place, str) else partial(
        table.scan, snapshot_id=place
    )  # fmt: skip
    scan = travel()
    snapshot = scan.snapshot
    assert snapshot is not None
    rows = sorted(scan.to_pylist(), key=lambda row: (row["k"], row["p"]))
    keys = [(row["k"],) if "moving" in table.name else (row["k"], row["p"]) for row in rows]
    assert len(set(keys)) == len(keys), f"snapshot {snapshot.id} of {table.name} repeats a key"
    _note(process, snapshot, rows)
    return snapshot, rows


def _digest(rows: list[Row]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _note(process: Process, snapshot: Snapshot, rows: list[Row]) -> None:
    path = process.folder / f"{snapshot.uuid}"
    try:
        with path.open("x") as file:
            file.write(_digest(rows))
    except FileExistsError:
        known = path.read_text()  # empty where somebody was killed, or is about to write
        assert not known or known == _digest(rows), (
            f"snapshot {snapshot.id} showed other rows before; now it shows {rows}"
        )
    (process.folder / "states").mkdir(exist_ok=True)
    (process.folder / "states" / _digest(rows)).touch()


def _check_follows(
    process: Process, snapshot: Snapshot, rows: list[Row], before: Snapshot, old: list[Row]
) -> None:
    if snapshot.commit_kind is CommitKind.COMPACT:
        assert rows == old, f"compaction {snapshot.id} made {rows} of {old}"
    elif snapshot.commit_kind is CommitKind.OVERWRITE:
        assert (process.folder / "states" / _digest(rows)).exists(), f"{snapshot.id}: {rows}"
    elif snapshot.commit_kind is CommitKind.APPEND:
        asked = journal(process.folder.parent, snapshot.commit_user, snapshot.commit_identifier)
        wanted = made_of(old, asked["rows"], moving="moving" in asked["table"])
        assert rows == wanted, (
            f"write {snapshot.id} of {asked['rows']} made {rows}, expected {wanted}, of {old}"
        )


def journal(folder: Path, user: str, identifier: int) -> dict[str, Any]:
    """What a process asked for in a step."""
    for line in (folder / f"{user}.journal").read_text().splitlines():
        if line.startswith('{"asked"'):
            entry: dict[str, Any] = json.loads(line)
            if entry["asked"] == identifier:
                return entry
    raise AssertionError(f"{user} has not asked for {identifier}")


def made_of(old: list[Row], rows: list[Row], *, moving: bool) -> list[Row]:
    """What a write makes of rows."""

    def key(row: Row) -> Any:
        return row["k"] if moving else (row["k"], row["p"])

    found = {key(row): row for row in old}
    for row in rows:
        if row["_row_kind"] == "-D":
            found.pop(key(row), None)
        else:
            found[key(row)] = {name: row[name] for name, _ in COLUMNS}
    return sorted(found.values(), key=lambda row: (row["k"], row["p"]))
