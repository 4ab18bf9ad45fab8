"""The services that are metastores: a Hive Metastore and AWS Glue's Data Catalog.

A Hive Metastore is reached over Thrift with the library pymetastore, AWS Glue with the library
boto3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from getpass import getuser
from typing import Any, TypeVar

from keytide.base.dataclass import dataclass, field
from keytide.base.process import library
from keytide.catalogs.metastore.registry import (
    INPUT_FORMAT,
    OUTPUT_FORMAT,
    SERDE,
    Column,
    Description,
    RegisteredDatabase,
    RegisteredTable,
)
from keytide.errors import DataError, KeytideError, NotFoundError

# -- a Hive Metastore over Thrift ------------------------------------------------------------------


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
        description = _types().Database(
            name=database.name,
            description=database.comment,
            locationUri=database.location,
            parameters={},
        )
        with self._asked(f"create database {database.name}") as hive:
            return _unless_taken(lambda: hive.create_database(description))

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
        made = types.Table(
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
            # Its errors cannot be changed, so no other context manager may pass them on.
            try:
                yield service.Client(protocols.TBinaryProtocol(transport))
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


def _columns(columns: Sequence[Column]) -> list[Any]:
    field = _types().FieldSchema
    return [field(name=each.name, type=each.type, comment=each.comment) for each in columns]


# -- AWS Glue's Data Catalog -----------------------------------------------------------------------


_TAKEN = "AlreadyExistsException"
# The attributes in Glue's response that can be sent back in an update.
_INPUT = (
    "Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention",
    "StorageDescriptor", "PartitionKeys", "ViewOriginalText", "ViewExpandedText", "TableType",
    "Parameters", "TargetTable",
)  # fmt: skip


@dataclass(frozen=True)
class GlueRegistry:
    """The catalog of an account, by default that of the credentials. See `Registry`.

    `settings` are arguments of boto3's client. Other settings come from the environment.
    """

    account: str | None = None
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def uri(self) -> str:
        """See `Registry`."""
        return f"glue://{self.account or ''}"

    def databases(self) -> list[str]:
        """See `Registry`."""
        with self._errors("list databases"):
            return [each["Name"] for each in self._pages("get_databases", "DatabaseList")]

    def database(self, name: str) -> RegisteredDatabase | None:
        """See `Registry`."""
        found = self._asked(f"read database {name}", "get_database", Name=name)
        if found is None:
            return None
        known = found["Database"]
        return RegisteredDatabase(
            known["Name"], known.get("LocationUri") or None, known.get("Description")
        )

    def create_database(self, database: RegisteredDatabase) -> bool:
        """See `Registry`."""
        fields = {"Name": database.name, "LocationUri": database.location}
        if database.comment is not None:
            fields["Description"] = database.comment
        doing = f"create database {database.name}"
        return self._asked(doing, "create_database", _TAKEN, DatabaseInput=fields) is not None

    def drop_database(self, name: str) -> bool:
        """See `Registry`. Glue would drop the tables too, so this checks for tables first."""
        if self.tables(name):
            return False
        self._asked(f"drop database {name}", "delete_database", Name=name)
        return True

    def tables(self, database: str) -> Sequence[RegisteredTable]:
        """See `Registry`."""
        client = self._client
        with self._errors(f"list the tables of {database}"):
            try:
                pages = self._pages("get_tables", "TableList", DatabaseName=database)
                return [_glue_registered(each) for each in pages]
            except client.exceptions.EntityNotFoundException:
                return []

    def table(self, database: str, name: str) -> RegisteredTable | None:
        """See `Registry`."""
        found = self._table(database, name)
        return None if found is None else _glue_registered(found)

    def create_table(self, database: str, name: str, description: Description) -> bool:
        """See `Registry`."""
        fields = {
            "Name": name,
            "TableType": "MANAGED_TABLE",
            "Parameters": dict(description.parameters),
            "PartitionKeys": [],
            "StorageDescriptor": {
                "Columns": _glue_columns(description.columns),
                "Location": description.location,
                "InputFormat": INPUT_FORMAT,
                "OutputFormat": OUTPUT_FORMAT,
                "SerdeInfo": {"SerializationLibrary": SERDE, "Parameters": {}},
            },
        }
        if description.comment is not None:
            fields["Description"] = description.comment
        return self._created(database, fields)

    def describe_table(self, database: str, name: str, description: Description) -> None:
        """See `Registry`."""
        known = self._known(database, name)
        columns = {"Columns": _glue_columns(description.columns)}
        known["StorageDescriptor"] = {**known["StorageDescriptor"], **columns}
        known["Parameters"] = {**known.get("Parameters", {}), **description.parameters}
        with self._errors(f"describe table {database}.{name}"):
            self._client.update_table(
                **self._account(), DatabaseName=database, TableInput=known, SkipArchive=True
            )

    def drop_table(self, database: str, name: str) -> None:
        """See `Registry`."""
        doing = f"drop table {database}.{name}"
        self._asked(doing, "delete_table", DatabaseName=database, Name=name)

    def rename_table(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """See `Registry`.

        Not atomic: for a moment, or if the second step fails, both names exist.
        """
        known = self._known(*old)
        if not self._created(new[0], {**known, "Name": new[1]}):
            return False
        self.drop_table(*old)
        return True

    # -- requests ---------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        return _client(self.settings)

    def _account(self) -> dict[str, str]:
        return {} if self.account is None else {"CatalogId": self.account}

    def _pages(self, call: str, member: str, **arguments: str) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator(call).paginate(**self._account(), **arguments)
        for page in pages:
            yield from page[member]

    def _table(self, database: str, name: str) -> dict[str, Any] | None:
        doing = f"read table {database}.{name}"
        found = self._asked(doing, "get_table", DatabaseName=database, Name=name)
        return None if found is None else found["Table"]

    def _known(self, database: str, name: str) -> dict[str, Any]:
        """The registered attributes of a table. Raises `NotFoundError`."""
        found = self._table(database, name)
        if found is None:
            raise NotFoundError(
                f"table {database}.{name} is no longer in {self.uri}; it was dropped or renamed"
            )
        return {member: found[member] for member in _INPUT if member in found}

    def _created(self, database: str, fields: Mapping[str, Any]) -> bool:
        doing = f"create table {database}.{fields['Name']}"
        try:
            answer = self._asked(
                doing, "create_table", _TAKEN, DatabaseName=database, TableInput=fields
            )
            return answer is not None
        except DataError as error:
            if isinstance(error.__cause__, self._client.exceptions.EntityNotFoundException):
                raise NotFoundError(
                    f"database {database} does not exist in {self.uri}; create it first"
                ) from error
            raise

    def _asked(
        self, doing: str, call: str, expected: str = "EntityNotFoundException", **arguments: Any
    ) -> dict[str, Any] | None:
        """The answer to a request, None if it fails with the expected exception."""
        client = self._client
        with self._errors(doing):
            try:
                answer: dict[str, Any] = getattr(client, call)(**self._account(), **arguments)
            except getattr(client.exceptions, expected):
                return None
        return answer

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """A context that converts errors of boto3 to errors that say how to fix them."""
        exceptions = library("botocore.exceptions", "glue", "AWS Glue")
        try:
            yield
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            raise DataError(
                f"{self.uri} cannot {doing}: {error}; check the region, the credentials and "
                "their permissions for Glue"
            ) from error


@cache
def _client(settings: tuple[tuple[str, str], ...]) -> Any:
    """One client for all tables: creating it is expensive, and threads can share it."""
    boto3 = library("boto3", "glue", "AWS Glue")
    return boto3.client("glue", **dict(settings))


def _glue_registered(found: Mapping[str, Any]) -> RegisteredTable:
    storage = found.get("StorageDescriptor") or {}
    return RegisteredTable(
        found["Name"],
        found.get("TableType") or "",
        storage.get("Location") or None,
        storage.get("InputFormat") or None,
        found.get("Parameters") or {},
    )


def _glue_columns(columns: Sequence[Column]) -> list[dict[str, str]]:
    return [
        {"Name": each.name, "Type": each.type}
        | ({} if each.comment is None else {"Comment": each.comment})
        for each in columns
    ]
