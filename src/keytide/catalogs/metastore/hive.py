"""A Hive Metastore over Thrift, using the library pymetastore."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from typing import Any, TypeVar

from keytide.base.process import library
from keytide.catalogs.metastore.description import (
    INPUT_FORMAT,
    OUTPUT_FORMAT,
    SERDE,
    Column,
    Description,
)
from keytide.catalogs.metastore.registry import RegisteredDatabase, RegisteredTable
from keytide.errors import DataError, KeytideError, NotFoundError

__all__ = ["HiveRegistry"]

T = TypeVar("T")

_TIMEOUT_MS = 60_000
_TABLES_AT_ONCE = 300
_CATALOG = "hive"


@dataclass(frozen=True)
class HiveRegistry:
    """A metastore at `host` and `port`. See `Registry`.

    Each call uses its own connection, so that threads share nothing.
    """

    host: str
    port: int

    @property
    def uri(self) -> str:
        """See `Registry`."""
        return f"thrift://{self.host}:{self.port}"

    def databases(self) -> list[str]:
        """See `Registry`."""
        with self._asked("list databases") as hive:
            return list(hive.get_all_databases())

    def database(self, name: str) -> RegisteredDatabase | None:
        """See `Registry`."""
        with self._asked(f"read database {name}") as hive:
            found = _if_there(lambda: hive.get_database(name))
        if found is None:
            return None
        return RegisteredDatabase(found.name, found.locationUri or None, found.description or None)

    def create_database(self, database: RegisteredDatabase) -> bool:
        """See `Registry`."""
        told = _types().Database(
            name=database.name,
            description=database.comment,
            locationUri=database.location,
            parameters={},
        )
        with self._asked(f"create database {database.name}") as hive:
            return _unless_taken(lambda: hive.create_database(told))

    def drop_database(self, name: str) -> bool:
        """See `Registry`."""
        with self._asked(f"drop database {name}") as hive:
            try:
                _if_there(lambda: hive.drop_database(name, False, False))
            except _types().InvalidOperationException:  # it contains tables
                return False
        return True

    def tables(self, database: str) -> Sequence[RegisteredTable]:
        """See `Registry`."""
        found: list[Any] = []
        with self._asked(f"list the tables of {database}") as hive:
            names = _if_there(lambda: hive.get_all_tables(database)) or []
            for start in range(0, len(names), _TABLES_AT_ONCE):
                some = names[start : start + _TABLES_AT_ONCE]
                asked = _types().GetTablesRequest(dbName=database, tblNames=some)
                found += hive.get_table_objects_by_name_req(asked).tables
        return [_registered(each) for each in found]

    def table(self, database: str, name: str) -> RegisteredTable | None:
        """See `Registry`."""
        with self._asked(f"read table {database}.{name}") as hive:
            found = _table(hive, database, name)
        return None if found is None else _registered(found)

    def create_table(self, database: str, name: str, description: Description) -> bool:
        """See `Registry`."""
        made = _new_table(database, name, description)
        with self._asked(f"create table {database}.{name}") as hive:
            # The response for a missing database differs between releases.
            if _if_there(lambda: hive.get_database(database)) is None:
                raise NotFoundError(
                    f"database {database} does not exist in {self.uri}; create it first"
                )
            return _unless_taken(lambda: hive.create_table(made))

    def describe_table(self, database: str, name: str, description: Description) -> None:
        """See `Registry`."""
        with self._asked(f"describe table {database}.{name}") as hive:
            known = self._known(hive, database, name)
            known.sd.cols = _columns(description.columns)
            known.parameters = {**(known.parameters or {}), **description.parameters}
            hive.alter_table(database, name, known)

    def drop_table(self, database: str, name: str) -> None:
        """See `Registry`."""
        with self._asked(f"drop table {database}.{name}") as hive:
            _if_there(lambda: hive.drop_table(database, name, False))

    def rename_table(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """See `Registry`. A metastore can also move the files of a table."""
        with self._asked(f"rename table {'.'.join(old)}") as hive:
            known = self._known(hive, *old)
            if _table(hive, *new) is not None:
                return False
            known.dbName, known.tableName = new
            hive.alter_table(*old, known)
        return True

    def _known(self, hive: Any, database: str, name: str) -> Any:
        found = _table(hive, database, name)
        if found is None:
            raise NotFoundError(
                f"table {database}.{name} is no longer in {self.uri}; it was dropped or renamed"
            )
        return found

    @contextmanager
    def _asked(self, doing: str) -> Iterator[Any]:
        """A context with a connection, whose errors say how to fix them."""
        thrift = library("thrift.Thrift", "hive", "a Hive Metastore")
        try:
            # Its errors cannot be changed, so no other context manager may pass them on.
            transport, hive = self._connected()
            try:
                yield hive
            finally:
                transport.close()
        except (thrift.TException, OSError) as error:
            if isinstance(error, KeytideError):
                raise
            said = getattr(error, "message", None) or error
            raise DataError(
                f"{self.uri} cannot {doing}: {said}; check the address, that the metastore is "
                "running, and its log"
            ) from error

    def _connected(self) -> tuple[Any, Any]:
        """A connection, to be closed, and a client of it."""
        sockets = library("thrift.transport.TSocket", "hive", "a Hive Metastore")
        transports = library("thrift.transport.TTransport", "hive", "a Hive Metastore")
        protocols = library("thrift.protocol.TBinaryProtocol", "hive", "a Hive Metastore")
        service = library(
            "pymetastore.hive_metastore.ThriftHiveMetastore", "hive", "a Hive Metastore"
        )
        socket = sockets.TSocket(self.host, self.port)
        socket.setTimeout(_TIMEOUT_MS)
        transport = transports.TBufferedTransport(socket)
        transport.open()
        return transport, service.Client(protocols.TBinaryProtocol(transport))


def _types() -> Any:
    return library("pymetastore.hive_metastore.ttypes", "hive", "a Hive Metastore")


def _if_there(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except _types().NoSuchObjectException:
        return None


def _unless_taken(call: Callable[[], object]) -> bool:
    try:
        call()
    except _types().AlreadyExistsException:
        return False
    return True


def _table(hive: Any, database: str, name: str) -> Any:
    # Metastores of release 4 support only this request.
    asked = _types().GetTableRequest(dbName=database, tblName=name)
    found = _if_there(lambda: hive.get_table_req(asked))
    return None if found is None else found.table


def _registered(found: Any) -> RegisteredTable:
    storage = found.sd
    return RegisteredTable(
        found.tableName,
        found.tableType or "",
        None if storage is None else storage.location or None,
        None if storage is None else storage.inputFormat or None,
        found.parameters or {},
    )


def _new_table(database: str, name: str, description: Description) -> Any:
    types, now_s = _types(), int(time.time())
    storage = types.StorageDescriptor(
        cols=_columns(description.columns),
        location=description.location,
        inputFormat=INPUT_FORMAT,
        outputFormat=OUTPUT_FORMAT,
        compressed=False,
        numBuckets=-1,
        serdeInfo=types.SerDeInfo(serializationLib=SERDE, parameters={}),
        bucketCols=[],
        sortCols=[],
        parameters={},
    )
    return types.Table(
        tableName=name,
        dbName=database,
        owner=getuser(),
        createTime=now_s,
        lastAccessTime=now_s,
        retention=0,
        sd=storage,
        partitionKeys=[],
        parameters=dict(description.parameters),
        tableType="MANAGED_TABLE",
    )


def _columns(columns: Sequence[Column]) -> list[Any]:
    field = _types().FieldSchema
    return [field(name=each.name, type=each.type, comment=each.comment) for each in columns]
