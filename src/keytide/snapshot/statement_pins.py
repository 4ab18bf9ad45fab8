"""The snapshot in which a statement sees each table: that of its first look."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from keytide.snapshot.stored_table import PinnedTable, StoredTable


class Pins:
    """Reads each table once, however often and under whatever names it is requested.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._tables: dict[str, PinnedTable] = {}
        self._named: dict[str, str] = {}
        self._lock = RLock()

    def named(self, name: str, look: Callable[[], PinnedTable]) -> PinnedTable:
        """The table with that name. A new name is found with `look`.

        Raises the errors of `look`.
        """
        with self._lock:
            if name not in self._named:
                table = self.of(look())
                self._named |= {name: table.uri, table.name: table.uri}
            return self._tables[self._named[name]]

    def of(self, table: StoredTable) -> PinnedTable:
        """A table that is already open."""
        with self._lock:
            known = self._tables.get(table.uri)
            return self.renew(table.pinned()) if known is None else known

    def renew(self, table: PinnedTable) -> PinnedTable:
        """Pin the table to this new state."""
        with self._lock:
            self._tables[table.uri] = table
        return table

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._named
