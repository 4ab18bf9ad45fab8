"""Table handles: a table of a lake at one snapshot, and the change of a statement.

When a handle is pickled for a worker, parts that only the driver needs are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from keytide.definition.generated import generated_columns
from keytide.predicate.predicate import Predicate
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableState
from keytide.snapshot.statement import Statement
from keytide.snapshot.stored import PinnedTable
from keytide.snapshot.view import TableView
from keytide.write.task import WriteTask
from keytide.write.tasks import task_on

__all__ = ["AppendedHandle", "ChangedByKey", "ChangedTable", "KeyedHandle", "StoredHandle"]

_H = TypeVar("_H", bound="StoredHandle")


class ChangedTable(Protocol):
    """What workers need to know about a table."""

    @property
    def view(self) -> TableView:
        """The table with the statement's schema."""
        ...

    @property
    def task(self) -> WriteTask | None:
        """The task that writes files of a table of the lake, None if workers write no files."""
        ...

    @property
    def updated(self) -> tuple[str, ...]:
        """The columns that an UPDATE sets."""
        ...

    @property
    def cases(self) -> Mapping[int, tuple[str, ...]]:
        """The columns that each WHEN clause of a MERGE sets, by its number."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether a statement has begun to change the table."""
        ...


class ChangedByKey(ChangedTable, Protocol):
    """The same for a table to which versions of keys are appended."""

    @property
    def began_ns(self) -> int | None:
        """When the statement began, in nanoseconds."""
        ...

    @property
    def gives_keys(self) -> bool:
        """Whether a new row can have the key of a removed row."""
        ...

    @property
    def inserts_new_keys(self) -> bool:
        """Whether the rows that a MERGE inserts have keys that no row has."""
        ...

    @property
    def moves_rows(self) -> bool:
        """Whether rows get other keys."""
        ...

    @property
    def fresher_by(self) -> int:
        """The minimum number of ticks by which a new version must be newer than the replaced one.

        0 if the later one of two equal versions wins.
        """
        ...


@dataclass
class Settling:
    """Whether the commit of a statement has begun. Mutable, and on the driver only.

    From then on, the commit cleans up after itself. If its outcome is unknown, a snapshot may refer
    to the statement's files, so a later abort must not delete them.
    """

    has_begun: bool = False


@dataclass(frozen=True)
class StoredHandle:
    """What the handles of all tables have in common.

    `state` is the state that the commit is based on, and `settling` its progress. Both stay on the
    driver. `task` writes files. `updated` are the columns that an UPDATE sets, `cases` those of
    each WHEN clause of a MERGE.
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
        """The table with the statement's schema."""
        return self.known.view if self.task is None else self.task.view

    @property
    def has_begun(self) -> bool:
        """Whether a statement has begun to change the table."""
        return self.task is not None

    @property
    def known(self) -> TableState:
        """The state that the commit is based on. Driver only."""
        assert self.state is not None
        return self.state

    def begun(self: _H, updated: Sequence[str] = ()) -> _H:
        """The handle after the statement has begun, with the write task. Driver only."""
        state = self.known.in_statement(Statement.new())
        task = task_on(state).of_statement()
        return replace(self, task=task, settling=Settling(), updated=tuple(updated))

    def begun_merge(self: _H, cases: Mapping[int, Sequence[str]]) -> _H:
        """The same for a MERGE, with the columns that each WHEN clause sets. Driver only."""
        updated = sorted({name for names in cases.values() for name in names})
        return replace(self.begun(updated), cases={n: tuple(s) for n, s in cases.items()})


@dataclass(frozen=True)
class KeyedHandle(StoredHandle):
    """A table with a primary key.

    With `gives_keys`, a new row can have the key of a removed one. With `inserts_new_keys`, the
    rows that a MERGE inserts have keys that no row has. `began_ns` is when the statement began.
    """

    began_ns: int | None = None
    splits: int = 0
    gives_keys: bool = False
    inserts_new_keys: bool = False

    @property
    def fresher_by(self) -> int:
        """See `ChangedByKey`. Of equal versions the later one wins."""
        return 0

    @property
    def moves_rows(self) -> bool:
        """Whether rows get other keys."""
        return bool(set(self.updated) & set(self.view.schema.primary_keys))


@dataclass(frozen=True)
class AppendedHandle(StoredHandle):
    """A table without a key. Merge sinks may have to rewrite the files in `files`."""

    files: Mapping[str, PlannedFile] = field(default_factory=dict)

    @property
    def marks_rows(self) -> bool:
        """Whether removed rows are marked as deleted. Otherwise their files are rewritten."""
        return self.view.options.deletion_vectors_enabled

    @property
    def moves_rows(self) -> bool:
        """Whether rows move to other partitions or buckets."""
        view = self.view
        placing = {*view.schema.partition_keys, *(view.options.bucket_key or ())}
        changed = set(self.updated)
        for column in generated_columns(view.schema, view.options):
            if changed.intersection(column.columns):
                changed.add(column.field.name)
        return bool(changed & placing)
