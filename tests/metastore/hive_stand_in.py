"""A small Hive Metastore in this process: the requests that Keytide makes, over Thrift.

`make metastore` runs the same tests with a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR
from threading import Lock, Thread
from typing import Any

from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.server.TServer import TThreadedServer
from thrift.transport.TSocket import TServerSocket

__all__ = ["Hive", "hive_serving"]


class Hive:
    """Databases and tables as they were told."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        self.lock = Lock()

    def get_all_databases(self) -> list[str]:
        return sorted(self.about)

    def get_database(self, name: str) -> Any:
        return _there(self.about, name)

    def create_database(self, database: Any) -> None:
        if database.name in self.about:
            raise ttypes.AlreadyExistsException(database.name)
        self.about[database.name], self.tables[database.name] = database, {}

    def drop_database(self, name: str, deletes: bool, cascades: bool) -> None:
        assert not deletes
        assert not cascades
        if _there(self.tables, name):
            raise ttypes.InvalidOperationException(f"Database {name} is not empty")
        del self.about[name], self.tables[name]

    def get_all_tables(self, database: str) -> list[str]:
        return sorted(self.tables.get(database, {}))

    def get_table_objects_by_name_req(self, request: Any) -> Any:
        tables = self.tables[request.dbName]
        return ttypes.GetTablesResult(tables=[tables[name] for name in request.tblNames])

    def get_table_req(self, request: Any) -> Any:
        tables = self.tables.get(request.dbName, {})
        return ttypes.GetTableResult(table=_there(tables, request.tblName))

    def create_table(self, table: Any) -> None:
        with self.lock:
            if table.tableName in self.tables[table.dbName]:
                raise ttypes.AlreadyExistsException(table.tableName)
            self.tables[table.dbName][table.tableName] = table

    def alter_table(self, database: str, name: str, table: Any) -> None:
        with self.lock:
            _there(self.tables[database], name)
            if (table.dbName, table.tableName) != (database, name):
                if table.tableName in self.tables[table.dbName]:
                    raise ttypes.InvalidOperationException("new table exists")
                del self.tables[database][name]
            self.tables[table.dbName][table.tableName] = table

    def drop_table(self, database: str, name: str, deletes: bool) -> None:
        assert not deletes
        _there(self.tables[database], name)
        del self.tables[database][name]


def _there(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise ttypes.NoSuchObjectException(name)
    return known[name]


class _Sockets(TServerSocket):
    def accept(self) -> Any:
        try:
            return super().accept()
        except (OSError, AttributeError) as error:
            # Of all exceptions the server's loop ends with this one alone; others it logs for ever.
            raise KeyboardInterrupt from error


class _Server(TThreadedServer):
    def serve(self) -> None:
        with suppress(KeyboardInterrupt):
            super().serve()


@contextmanager
def hive_serving(hive: Hive) -> Iterator[str]:
    """The address of a metastore on this machine, as long as the block lasts."""
    sockets = _Sockets("127.0.0.1", 0)
    sockets.listen()
    port = sockets.handle.getsockname()[1]
    sockets.listen = lambda: None
    server = _Server(ThriftHiveMetastore.Processor(hive), sockets, daemon=True)
    thread = Thread(target=server.serve, daemon=True)
    thread.start()
    yield f"thrift://127.0.0.1:{port}"
    sockets.handle.shutdown(SHUT_RDWR)  # wakes who waits for the next client
    sockets.close()
    thread.join(10)
    assert not thread.is_alive()
