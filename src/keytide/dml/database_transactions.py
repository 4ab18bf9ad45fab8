"""Serializable statements: one database transaction from the first read to the change.

The driver, where statements begin and end, holds it open. Other connections, possibly in other
processes, read rows at the transaction's snapshot, and the transaction is informed of what they
read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from keytide.dml.database import Database, DatabaseSession, DatabaseTable
from keytide.dml.spi import ConnectorSession

__all__ = ["HeldTransaction", "Transactions"]


@dataclass
class HeldTransaction:
    """An open transaction. `snapshot` lets other connections see its state, if they need that."""

    session: DatabaseSession
    snapshot: str | None
    open: ExitStack
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def used(self) -> Iterator[DatabaseSession]:
        """The connection, for exclusive use within a block."""
        with self.lock:
            yield self.session


class Transactions:
    """The transactions of serializable statements in a database, by statement.

    They stay in their process. Pickling drops them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._held: dict[str, HeldTransaction] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Transactions, (self._database,)

    def begun(self, statement: ConnectorSession) -> HeldTransaction | None:
        """The transaction of a statement. The first call begins it. None for `snapshot`."""
        if statement.isolation == "snapshot":
            return None
        with self._lock:
            held = self._held.get(statement.query_id)
            if held is None:
                held = self._held[statement.query_id] = self._begin()
            return held

    def touch(
        self, statement: ConnectorSession, table: DatabaseTable, condition: str, given: Any
    ) -> None:
        """Record that rows of a condition are read for a statement."""
        held = self.begun(statement)
        if held is not None:
            with self._database.errors(str(table)), held.used() as session:
                self._database.touch(session, table, condition, given)

    def end(self, statement: ConnectorSession) -> None:
        """End the transaction of a statement. Uncommitted changes are rolled back."""
        with self._lock:
            held = self._held.pop(statement.query_id, None)
        if held is not None:
            held.open.close()

    def _begin(self) -> HeldTransaction:
        with ExitStack() as stack:
            session = stack.enter_context(self._database.session())
            session.execute(self._database.begin_serializable)
            snapshot = self._database.export_snapshot(session)
            return HeldTransaction(session, snapshot, stack.pop_all())
