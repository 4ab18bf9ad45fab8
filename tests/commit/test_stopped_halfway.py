"""Operations of several files, stopped before any of them: a table is whole, or it is not there.

Each is stopped at every change of the store, in a folder and in an object store, which cannot
rename folders. Then a process that has seen nothing before looks. `test_purging` does the same for
a purge.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Literal

import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from keytide.definition.schema_evolution import SetOption
from keytide.snapshot.lineage import forget_lineages
from keytide.store import Store, open_store
from keytide.store.faults import Crash, Fault, FaultyStore
from stops import stops_of

Place = Literal["folder", "bucket"]
State = dict[int, str] | None
"""The rows of the table by key. None: there is no table."""

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
OPTIONS = {"deletion-vectors.enabled": "true"}

CALLS: dict[str, Callable[[kt.Lake], object]] = {
    "drop": lambda lake: lake.drop_table("t"),
    "drop database": lambda lake: lake.drop_database("default", cascade=True),
    "rename": lambda lake: lake.rename_table("t", "u"),
    "alter": lambda lake: lake.table("t").alter(SetOption("user.note", "y")),
    "branch": lambda lake: lake.table("t").create_branch("c"),
    "delete branch": lambda lake: lake.table("t").delete_branch("b"),
    "rename branch": lambda lake: lake.table("t").rename_branch("b", "d"),
    "tag": lambda lake: lake.table("t").create_tag("two"),
    "delete tag": lambda lake: lake.table("t").delete_tag("one"),
    "expire": lambda lake: lake.table("t").expire_snapshots(retain_max=1, retain_min=1),
    "roll back": lambda lake: lake.table("t").rollback_to("one"),
    "overwrite": lambda lake: lake.table("t").overwrite([{"k": 1, "v": "over"}]),
    "rescale": lambda lake: rescaled(lake.table("t")),
}  # fmt: skip
MEANTIME = {"roll back"}
"""Those that go through earlier states of the table."""
BEGINS_AS = {"drop database": "drop"}
"""Those that take the steps of another one first."""


def rescaled(table: kt.Table) -> object:
    table.alter(SetOption("bucket", "2"))
    return table.rescale()


def fill(store: Store) -> None:
    """A table with two schemas, a tag and a branch."""
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=OPTIONS)
    table.write([{"k": 1, "v": "old"}, {"k": 2, "v": "old"}])
    table.create_tag("one")
    table.alter(SetOption("user.note", "x"))
    table.write([{"k": 2, "v": "new"}])
    table.create_branch("b").write([{"k": 3, "v": "branch"}])
    table.write([{"k": 4, "v": "new"}])


in_bucket = copies_of(fill)


@cache
def in_folder() -> str:
    folder = tempfile.mkdtemp()
    fill(open_store(folder))
    return folder


@contextmanager
def filled(place: Place) -> Iterator[Store]:
    if place == "bucket":
        yield in_bucket()
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(in_folder(), folder, dirs_exist_ok=True)
        yield open_store(folder)


def fresh(store: Store) -> kt.Lake:
    """A lake in a process that has seen nothing before."""
    forget_lineages()
    return kt.connect("", store=store)


def state_in(lake: kt.Lake, name: str = "t", **travel: Any) -> State:
    if f"default.{name}" not in lake.tables():
        return None
    rows = lake.table(name).scan(**travel).to_pylist()
    return {row["k"]: row["v"] for row in rows}


def call(store: Store, name: str) -> None:
    CALLS[name](fresh(store))


@cache
def steps(place: Place, name: str) -> list[tuple[str, str]]:
    """The changes of the store, without random names."""
    with filled(place) as store:
        faulty = FaultyStore(store)
        call(faulty, name)
        return [(kind, RANDOM.sub("", path)) for kind, path in faulty.log if kind in CHANGES]


CHANGES = ("create", "put", "delete", "hint", "output")
RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def stops(place: Place, name: str) -> list[tuple[str, int]]:
    """Where to stop, but for the steps that another call takes too."""
    every, first = steps(place, name), steps(place, BEGINS_AS[name]) if name in BEGINS_AS else []
    assert every[: len(first)] == first
    return [stop for stop in stops_of(every) if stop not in stops_of(first)]


@cache
def known_states(place: Place, name: str) -> list[State]:
    """Before and after, and what was between the two."""
    with filled(place) as store:
        table = fresh(store).table("t")
        before = [state_in(fresh(store))]
        if name in MEANTIME:
            ids = [snapshot.id for snapshot in table.snapshots()]
            before += [state_in(fresh(store), snapshot_id=number) for number in ids]
        call(store, name)
        return [*before, state_in(fresh(store))]


PLACES: list[Place] = ["folder", "bucket"]
STOPS = [
    (place, name, *stop)
    for place in PLACES
    for name in CALLS
    # What takes the same steps in both is stopped in one.
    if place == "folder"
    or (name != "rename" and stops_of(steps("bucket", name)) != stops_of(steps("folder", name)))
    for stop in stops(place, name)
]


@pytest.mark.parametrize(("place", "name", "operation", "nth"), STOPS)
def test_table_is_whole_or_not_there_wherever_it_stops(
    place: Place, name: str, operation: Any, nth: int
) -> None:
    with filled(place) as store:
        with suppress(Crash):
            call(FaultyStore(store, [Fault(operation, nth=nth, action="crash")]), name)
        lake = fresh(store)
        at = "u" if name == "rename" and "default.u" in lake.tables() else "t"
        found = state_in(lake, at)
        assert found in known_states(place, name) or at == "u"
        if found is None:
            create_anew(lake)
            found = {}
        table = lake.table(at)
        for branch in table.branches():
            assert table.branch(branch.name).scan().count() > 0
        assert table.verify(quick=True).is_healthy
        table.rescale()  # continues, and otherwise changes nothing
        table.write([{"k": 9, "v": "after"}])
        after = state_in(fresh(store), at) or {}
        assert after.pop(9) == "after"
        # What a rollback has gone back to may have rows that a compaction had not shown yet.
        assert after in (known_states(place, name) if name in MEANTIME else [found])
        assert table.verify().is_healthy


def create_anew(lake: kt.Lake) -> None:
    """Create the table again, after the call that the refusal names if it is refused."""
    try:
        lake.create_table("t", SCHEMA, ["k"])
    except kt.ConflictError:
        lake.drop_table("t")
        lake.create_table("t", SCHEMA, ["k"])
    assert state_in(lake) == {}


@pytest.mark.parametrize("place", PLACES)
def test_what_a_drop_left_goes_with_the_next_one(place: Place) -> None:
    with filled(place) as store:
        for operation, nth in stops(place, "drop"):
            with suppress(Crash, kt.NotFoundError):
                fault = Fault(operation, nth=nth, action="crash")  # type: ignore[arg-type]
                call(FaultyStore(store, [fault]), "drop")
        fresh(store).drop_table("t", missing_ok=True)
        fresh(store).create_table("u", SCHEMA, ["k"])
        fresh(store).drop_table("u")
        assert [info.path for info in store.list("default.db")] == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("created", [False, True], ids=["not there", "created again"])
@pytest.mark.parametrize("written", [False, True], ids=["without rows", "with rows"])
def test_writer_that_began_before_a_drop_commits_to_no_other_table(
    place: Place, created: bool, written: bool
) -> None:
    """At every change of the store during a write, the table is dropped, and maybe created."""
    with filled(place) as store:
        fresh(store).drop_table("t")
        first = fresh(store).create_table("t", SCHEMA, ["k"])
        if written:
            first.write([{"k": 1, "v": "old"}])
        log = FaultyStore(store)
        fresh(log).table("t").write([{"k": 2, "v": "late"}])
        changes = sum(kind in ("create", "put", "output", "hint") for kind, _ in log.log)
    for nth in range(1, changes + 1):
        with filled(place) as store:
            fresh(store).drop_table("t")
            first = fresh(store).create_table("t", SCHEMA, ["k"])
            if written:
                first.write([{"k": 1, "v": "old"}])

            def act(store: Store = store) -> None:
                lake = kt.connect("", store=store)
                lake.drop_table("t")
                if created:
                    lake.create_table("t", SCHEMA, ["k"])

            with suppress(kt.ConflictError, kt.NotFoundError, kt.DataError):
                kt.connect("", store=Between(store, nth, act)).table("t").write(
                    [{"k": 2, "v": "late"}]
                )
            lake = fresh(store)
            assert state_in(lake) == ({} if created else None)
            if not created:
                create_anew(lake)
            lake.table("t").write([{"k": 3, "v": "after"}])
            assert lake.table("t").verify().is_healthy


class Between(FaultyStore):
    """Before the nth change of the store, somebody else acts."""

    def __init__(self, inner: Store, nth: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left, self.act = [nth], act

    def _perform(self, operation: str, path: str, do: Any, tear: Any = None) -> Any:
        self._count(operation)
        return super()._perform(operation, path, do, tear)

    @contextmanager
    def open_output(self, path: str) -> Iterator[Any]:
        self._count("output")
        with super().open_output(path) as file:
            yield file

    def _count(self, operation: str) -> None:
        if operation in ("create", "put", "output", "hint"):
            self.left[0] -= 1
            if self.left[0] == 0:
                self.act()
