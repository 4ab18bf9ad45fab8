"""Serializable statements: a transaction of the database from the first look to the change.

It is held on the driver, where statements begin and end. Rows are read by other connections, and
perhaps by other processes, at the transaction's snapshot; the transaction is told what they read.
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
    """A transaction that has begun. By `snapshot` others see what it sees, where they need that."""

    session: DatabaseSession
    snapshot: str | None
    open: ExitStack
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def used(self) -> Iterator[DatabaseSession]:
        """The connection, for a block in which no other thread has it."""
        with self.lock:
            yield self.session


class Transactions:
    """The transactions of serializable statements on a database, by statement.

    They stay in their process: what is pickled has none.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._held: dict[str, HeldTransaction] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Transactions, (self._database,)

    def begun(self, statement: ConnectorSession) -> HeldTransaction | None:
        """The transaction of a statement, which begins with the first call; None for `snapshot`."""
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
        """Note that rows of a condition are read for a statement."""
        held = self.begun(statement)
        if held is not None:
            with self._database.errors(str(table)), held.used() as session:
                self._database.touch(session, table, condition, given)

    def end(self, statement: ConnectorSession) -> None:
        """End the transaction of a statement; what it has not committed is undone."""
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
