"""Handles: a table of a lake at one snapshot, and what a statement does to it.

On its way to a worker a handle leaves behind what only the driver needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from keytide.table.conditions.predicate import Predicate
from keytide.table.definition.generated import generated_columns
from keytide.table.read.sections import PlannedFile
from keytide.table.state.state import TableState
from keytide.table.state.stored import PinnedTable
from keytide.table.state.view import TableView
from keytide.table.write.task import WriteTask
from keytide.table.write.tasks import task_on

__all__ = ["AppendedHandle", "ChangedByKey", "ChangedTable", "KeyedHandle", "StoredHandle"]

_H = TypeVar("_H", bound="StoredHandle")


class ChangedTable(Protocol):
    """What those who work on a table's rows need to know of it."""

    @property
    def view(self) -> TableView:
        """The table at the schema of the statement."""
        ...

    @property
    def task(self) -> WriteTask | None:
        """What writes files of a table of the lake; None where workers write none."""
        ...

    @property
    def updated(self) -> tuple[str, ...]:
        """The columns that an UPDATE sets."""
        ...

    @property
    def cases(self) -> Mapping[int, tuple[str, ...]]:
        """Those that each WHEN of a MERGE sets, by its number."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether a statement that changes the table has."""
        ...


class ChangedByKey(ChangedTable, Protocol):
    """The same of a table of which versions of keys are appended."""

    @property
    def began_ns(self) -> int | None:
        """When the statement began."""
        ...

    @property
    def gives_keys(self) -> bool:
        """Whether a row may come under the key of one that goes."""
        ...

    @property
    def inserts_new_keys(self) -> bool:
        """Whether rows that a MERGE inserts have keys that no row has."""
        ...

    @property
    def moves_rows(self) -> bool:
        """Whether rows get other keys."""
        ...

    @property
    def fresher_by(self) -> int:
        """By how many ticks a version is fresher than that whose place it takes, at least.

        0 where of equal ones the later is the row.
        """
        ...


@dataclass
class Settling:
    """Whether the commit of a statement has begun. Driver only; changes.

    From then on the commit tidies up after itself. Where its outcome is unknown, a snapshot may
    name what the statement wrote, so an abort that comes later has to leave it.
    """

    has_begun: bool = False


@dataclass(frozen=True)
class StoredHandle:
    """What all statements say of a table.

    `state` is what the commit goes by, `settling` how far it is; both stay on the driver. `task`
    writes; `updated` are the columns that an UPDATE sets, `cases` those of each WHEN of a MERGE.
    """

    table: PinnedTable
    state: TableState | None
    predicate: Predicate | None = None
    task: WriteTask | None = None
    updated: tuple[str, ...] = ()
    settling: Settling | None = None
    cases: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"table {self.table.name}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "state": None, "settling": None}

    @property
    def view(self) -> TableView:
        """The table at the schema of the statement."""
        return self.known.view if self.task is None else self.task.view

    @property
    def has_begun(self) -> bool:
        """Whether a statement that changes the table has."""
        return self.task is not None

    @property
    def known(self) -> TableState:
        """What the commit goes by. Driver only."""
        assert self.state is not None
        return self.state

    def begun(self: _H, updated: Sequence[str] = ()) -> _H:
        """The handle of a statement that has begun, with what writes. Driver only."""
        task = task_on(self.known).of_statement()
        return replace(self, task=task, settling=Settling(), updated=tuple(updated))

    def begun_merge(self: _H, cases: Mapping[int, Sequence[str]]) -> _H:
        """The same of a MERGE, by what each WHEN sets. Driver only."""
        updated = sorted({name for names in cases.values() for name in names})
        return replace(self.begun(updated), cases={n: tuple(s) for n, s in cases.items()})


@dataclass(frozen=True)
class KeyedHandle(StoredHandle):
    """A table with a primary key.

    With `gives_keys` a row may come under the key of one that goes; rows that a MERGE inserts have
    keys that no row has with `inserts_new_keys`. `began_ns` is when the statement began.
    """

    began_ns: int | None = None
    splits: int = 0
    gives_keys: bool = False
    inserts_new_keys: bool = False

    @property
    def fresher_by(self) -> int:
        """See `ChangedByKey`: which version came later is known."""
        return 0

    @property
    def moves_rows(self) -> bool:
        """Whether rows get other keys."""
        return bool(set(self.updated) & set(self.view.schema.primary_keys))


@dataclass(frozen=True)
class AppendedHandle(StoredHandle):
    """A table without one; `files` are those whose rows merge sinks may have to write again."""

    files: Mapping[str, PlannedFile] = field(default_factory=dict)

    @property
    def marks_rows(self) -> bool:
        """Whether rows that go are marked as dead; otherwise their files are written again."""
        return self.view.options.deletion_vectors_enabled

    @property
    def moves_rows(self) -> bool:
        """Whether rows get to other partitions or buckets."""
        view = self.view
        placing = {*view.schema.partition_keys, *(view.options.bucket_key or ())}
        changed = set(self.updated)
        for column in generated_columns(view.schema, view.options):
            if changed.intersection(column.columns):
                changed.add(column.field.name)
        return bool(changed & placing)
