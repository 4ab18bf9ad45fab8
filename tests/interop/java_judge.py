"""Java Paimon as a judge: its own classes, driven through the gateway that comes with pyspark.

`make interop` fetches the releases; without one of them the tests of that judge are skipped.
Methods that a class has from an interface alone are found by reflection, which the gateway does
not do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from interop_judges import PROJECT, ROW_KIND, Condition, RefusedError
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.conf import SparkConf
from pyspark.java_gateway import launch_gateway

import keytide as kt
from keytide.base.process import cached_property
from keytide.types import (
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    MultisetType,
    RowType,
    VectorType,
)

JAVA_RELEASES = {
    "java-1.4.2": PROJECT / ".venv-java/paimon-bundle-1.4.2.jar",
    "java-2.0.0": PROJECT / ".venv-java/paimon-flink-2.0-2.0.0.jar",
}
"""The releases that judge, and the archive of each with all of its classes."""


class JavaGateway:
    """One Java process with Paimon's classes, until it is closed."""

    def __init__(self, archives: Sequence[Path], scratch: Path) -> None:
        conf = SparkConf(loadDefaults=False)
        conf.set("spark.driver.extraClassPath", os.pathsep.join(map(str, archives)))
        conf.set("spark.driver.memory", "1g")
        self.scratch = scratch
        # A thread with one connection of its own mixes answers up where an object of Java is
        # collected while another answer is awaited.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PIN_THREAD", "false")
            self._gateway = launch_gateway(conf)
        self._methods: dict[tuple[str, str, int], list[Any]] = {}

    @property
    def jvm(self) -> Any:
        """The classes of Java."""
        return self._gateway.jvm

    @property
    def paimon(self) -> Any:
        """The classes of Paimon."""
        return self._gateway.jvm.org.apache.paimon

    def array(self, values: Sequence[Any], kind: Any = None) -> Any:
        """A Java array."""
        made = self._gateway.new_array(kind or self.jvm.java.lang.Object, len(values))
        for place, value in enumerate(values):
            if isinstance(value, Boxed):
                self.jvm.java.lang.System.arraycopy(value.array, 0, made, place, 1)
            else:
                made[place] = value
        return made

    def boxed(self, value: float, name: str) -> Boxed:
        """A number of just that Java class; on its own it would come out of Java as Python's."""
        return Boxed(self.array([value], getattr(self.jvm.java.lang, name)))

    def call(self, target: Any, name: str, *arguments: Any) -> Any:
        """Call a method that the class of `target` may have from an interface."""
        owner = target.getClass()
        key = (owner.getName(), name, len(arguments))
        if key not in self._methods:
            self._methods[key] = [
                method for method in owner.getMethods()
                if method.getName() == name and method.getParameterCount() == len(arguments)
                and not method.isBridge()
            ]  # fmt: skip
            for method in self._methods[key]:
                method.setAccessible(True)
        (method, *_) = [m for m in self._methods[key] if _fits(m, arguments)]
        return method.invoke(target, self.array(arguments))

    def close(self) -> None:
        """End the process."""
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(timeout=20)


@dataclass(frozen=True)
class Boxed:
    """A Java number, as the one element of a Java array."""

    array: Any


def _fits(method: Any, arguments: Sequence[Any]) -> bool:
    """Whether a method takes arguments of these classes."""
    kinds = method.getParameterTypes()
    return all(
        kind.isInstance(argument) if isinstance(argument, JavaObject) else _takes_plain(kind)
        for kind, argument in zip(kinds, arguments, strict=True)
    )


def _takes_plain(kind: Any) -> bool:
    """Whether numbers, texts and None of Python may be what a parameter wants."""
    return kind.isPrimitive() or kind.getName().startswith("java.")


@dataclass(frozen=True)
class JavaPaimon:
    """Java Paimon."""

    warehouse: str
    gateway: JavaGateway = field(repr=False)
    name: str
    """The release, as `JAVA_RELEASES` has it."""

    def create(
        self,
        table: str,
        columns: Mapping[str, str],
        primary_key: Sequence[str],
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """See `Judge`."""
        text = self.gateway.jvm.java.lang.String
        with _refusals():
            builder = self.gateway.paimon.schema.Schema.newBuilder()
            for name, kind in columns.items():
                builder.column(name, self._values.java_type(kt.parse_sql_type(kind)))
            builder.primaryKey(self.gateway.array(primary_key, text))
            builder.partitionKeys(self.gateway.array(partition_by, text))
            for key, value in (options or {}).items():
                builder.option(key, value)
            manager = self.gateway.paimon.schema.SchemaManager(self._files, self._path(table))
            manager.createTable(builder.build())

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Condition] = (),
        snapshot_id: int | None = None,
        tag: str | None = None,
        options: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> pa.Table:
        """See `Judge`; `options` are those of one scan."""
        given = {"scan.snapshot-id": snapshot_id, "scan.tag-name": tag}
        scan = {key: str(value) for key, value in given.items() if value is not None}
        scan |= options or {}
        with _refusals():
            opened = self.open(table, scan, branch)
            if columns is not None:  # a read of some columns filters by no others
                columns = list(columns)
                needed = list(dict.fromkeys([*columns, *(term.column for term in where)]))
            fields = self._fields(opened, columns and needed)
            rows = [row for row, _ in self._rows(opened, fields, columns, where)]
            return _table_of(rows, fields).select(columns or [f.name for f in fields])

    def write(
        self,
        table: str,
        rows: pa.Table,
        branch: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """See `Judge`. A fifth small file is compacted with the others, unless options say not."""
        kinds = rows[ROW_KIND].to_pylist() if ROW_KIND in rows.column_names else None
        with _refusals():
            opened = self.open(table, options, branch=branch)
            with self._writing(opened) as write:
                for row in self._values.java_rows(rows, self._fields(opened, None), kinds):
                    write.write(row)

    # -- beyond what all judges do --------------------------------------------------------------

    def compact(self, table: str, *, full: bool = True) -> None:
        """Compact all buckets that have files."""
        with _refusals():
            opened = self.open(table, {"write-only": "false"})
            splits = self._splits(self.gateway.call(opened, "newReadBuilder"))
            buckets = {}
            for split in splits:
                partition = split.partition()
                buckets[(partition.toString(), split.bucket())] = (partition, split.bucket())
            with self._writing(opened) as write:
                for partition, bucket in buckets.values():
                    write.compact(partition, bucket, full)

    def overwrite(self, table: str, rows: pa.Table) -> None:
        """Put rows in the place of all, or of those of their partitions."""
        with _refusals():
            opened = self.open(table)
            with self._writing(opened, overwrites=True) as write:
                for row in self._values.java_rows(rows, self._fields(opened, None), None):
                    write.write(row)

    def changes(self, table: str, after: int) -> list[tuple[str, dict[str, Any]]]:
        """What a stream that starts behind a snapshot sees: kinds and rows, until no more come."""
        with _refusals():
            opened = self.open(
                table, {"scan.mode": "from-snapshot", "scan.snapshot-id": str(after + 1)}
            )
            fields = self._fields(opened, None)
            builder = self.gateway.call(opened, "newReadBuilder")
            scan = self.gateway.call(builder, "newStreamScan")
            latest = opened.snapshotManager().latestSnapshotId()
            found: list[tuple[str, dict[str, Any]]] = []
            while (self.gateway.call(scan, "checkpoint") or after + 1) <= latest:
                splits = self.gateway.call(scan, "plan").splits()
                read = self.gateway.call(builder, "newRead")
                rows = self._read(read, splits, fields)
                names = [f.name for f in fields]
                found += [(kind, dict(zip(names, row, strict=True))) for row, kind in rows]
            return found

    def open(
        self, table: str, options: Mapping[str, str] | None = None, branch: str | None = None
    ) -> Any:
        """The table as Java has it, in the branch that its name may say too."""
        table, _, named = table.partition("$branch_")
        branch = branch or named or None
        found = self.gateway.paimon.table.FileStoreTableFactory.create(
            self._files, self._path(table)
        )
        if branch is not None:
            found = found.switchToBranch(branch)
        given = self.gateway.jvm.java.util.HashMap()
        for key, value in (options or {}).items():
            given.put(key, value)
        return found.copy(given) if options else found

    # -- how ------------------------------------------------------------------------------------

    @property
    def _files(self) -> Any:
        return self.gateway.paimon.fs.local.LocalFileIO.create()

    def _path(self, table: str) -> Any:
        database, name = table.rsplit(".", 1) if "." in table else ("default", table)
        return self.gateway.paimon.fs.Path(f"{self.warehouse}/{database}.db/{name}")

    @cached_property
    def _values(self) -> Values:
        return Values(self.gateway)

    def _fields(self, table: Any, columns: Sequence[str] | None) -> list[Column]:
        found = {}
        for place, each in enumerate(table.rowType().getFields()):
            found[each.name()] = Column(each.name(), place, _type_of(each.type()))
        return [found[name] for name in columns or found]

    def _splits(self, builder: Any) -> Any:
        scan = self.gateway.call(builder, "newScan")
        return self.gateway.call(scan, "plan").splits()

    def _rows(
        self, table: Any, fields: Sequence[Column], columns: Sequence[str] | None,
        where: Sequence[Condition],
    ) -> list[tuple[list[Any], str]]:  # fmt: skip
        builder = self.gateway.call(table, "newReadBuilder")
        if columns is not None:
            places = self.gateway.array([f.place for f in fields], self.gateway.jvm.int)
            builder = self.gateway.call(builder, "withProjection", places)
        for term in where:
            builder = self.gateway.call(builder, "withFilter", self._predicate(table, term))
        read = self.gateway.call(builder, "newRead")
        with suppress(IndexError, ValueError):
            read = self.gateway.call(read, "executeFilter")
        return self._read(read, self._splits(builder), fields)

    def _read(
        self, read: Any, splits: Any, fields: Sequence[Column]
    ) -> list[tuple[list[Any], str]]:
        manager = self.gateway.paimon.disk.IOManager.create(str(self.gateway.scratch))
        read = self.gateway.call(read, "withIOManager", manager)
        reader = self.gateway.call(read, "createReader", splits)
        rows = self.gateway.paimon.reader.RecordReaderIterator(reader)
        found = []
        try:
            while rows.hasNext():
                row = rows.next()
                cells = [self._values.read(row, i, f.type) for i, f in enumerate(fields)]
                found.append((cells, row.getRowKind().shortString()))
        finally:
            rows.close()
        return found

    def _predicate(self, table: Any, term: Condition) -> Any:
        builder = self.gateway.paimon.predicate.PredicateBuilder(table.rowType())
        (column,) = self._fields(table, [term.column])
        values = [self._values.java(_arrow_value(v, column.type), column.type) for v in term.values]
        if term.operator == "in":
            literals = self.gateway.jvm.java.util.Arrays.asList(self.gateway.array(values))
            return self.gateway.call(builder, "in", column.place, literals)
        return self.gateway.call(builder, _METHODS[term.operator], column.place, *values)

    @contextmanager
    def _writing(self, table: Any, *, overwrites: bool = False) -> Iterator[Any]:
        """What rows are written to, and committed at the end."""
        builder = self.gateway.call(table, "newBatchWriteBuilder")
        if overwrites:
            builder = self.gateway.call(builder, "withOverwrite")
        write, commit = (
            self.gateway.call(builder, "newWrite"),
            self.gateway.call(builder, "newCommit"),
        )
        try:
            manager = self.gateway.paimon.disk.IOManager.create(str(self.gateway.scratch))
            write.withIOManager(manager)
            yield write
            commit.commit(write.prepareCommit())
        finally:
            write.close()
            commit.close()


@dataclass(frozen=True)
class Column:
    """A column of a table as Java has it."""

    name: str
    place: int
    type: DataType


_METHODS = {
    "=": "equal", "<": "lessThan", "<=": "lessOrEqual", ">": "greaterThan", ">=": "greaterOrEqual",
    "is null": "isNull", "is not null": "isNotNull",
}  # fmt: skip


def _type_of(java_type: Any) -> DataType:
    return kt.parse_sql_type(java_type.asSQLString())


def _table_of(rows: Sequence[Sequence[Any]], fields: Sequence[Column]) -> pa.Table:
    arrays = [
        pa.array([row[place] for row in rows], f.type.to_arrow()) for place, f in enumerate(fields)
    ]
    return pa.Table.from_arrays(arrays, names=[f.name for f in fields])


def _arrow_value(value: Any, kind: DataType) -> Any:
    """A literal of a condition as `Values.java` takes it."""
    return (
        pa.scalar(value).cast(kind.to_arrow())
        if isinstance(value, str)
        else pa.scalar(value, kind.to_arrow())
    )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Py4JError as error:
        cause = getattr(error, "java_exception", None)
        while cause is not None and cause.getCause() is not None:
            cause = cause.getCause()
        text = str(error) if cause is None else cause.toString()
        raise RefusedError(text) from error


@dataclass(frozen=True)
class Values:
    """Values on their way to Java and back. Times are counts of their Arrow unit, as in Arrow."""

    gateway: JavaGateway
    _types: dict[DataType, Any] = field(default_factory=dict)

    def java_type(self, kind: DataType) -> Any:
        """A data type of Paimon."""
        if kind not in self._types:
            owner = self.gateway.jvm.java.lang.Class.forName("org.apache.paimon.types.DataType")
            text = json.dumps(kind.to_json())
            self._types[kind] = self.gateway.paimon.utils.JsonSerdeUtil.fromJson(text, owner)
        return self._types[kind]

    # -- to Java --------------------------------------------------------------------------------

    def java_rows(
        self, rows: pa.Table, fields: Sequence[Column], kinds: Sequence[str] | None
    ) -> Iterator[Any]:
        """Rows as Paimon takes them."""
        columns = [
            rows.column(f.name).cast(f.type.to_arrow()) if f.name in rows.column_names else None
            for f in fields
        ]
        for number in range(rows.num_rows):
            row = self._row(
                [None if column is None else self.java(column[number], f.type)
                 for f, column in zip(fields, columns, strict=True)]
            )  # fmt: skip
            if kinds is not None:
                row.setRowKind(self.gateway.paimon.types.RowKind.fromShortString(kinds[number]))
            yield row

    def java(self, value: pa.Scalar, kind: DataType) -> Any:
        """One value."""
        if not value.is_valid:
            return None
        if isinstance(kind, ArrayType):
            return self._array([self.java(each, kind.element) for each in value.values])
        if isinstance(kind, VectorType):
            numbers = self.gateway.array(value.as_py(), self.gateway.jvm.float)
            return self.gateway.paimon.data.BinaryVector.fromPrimitiveArray(numbers)
        if isinstance(kind, MultisetType):
            kind = MapType(kind.element, kt.parse_sql_type("INT"))
        if isinstance(kind, MapType):
            pairs = value.as_py(maps_as_pydicts=None)
            keys = pa.array([k for k, _ in pairs], kind.key.to_arrow())
            values = pa.array([v for _, v in pairs], kind.value.to_arrow())
            return self._map(keys, values, kind.key, kind.value)
        if isinstance(kind, RowType):
            return self._row([self.java(value[f.name], f.type) for f in kind.fields])
        assert isinstance(kind, AtomicType), f"{kind} does not travel to Java"
        return self._atomic(value, kind)

    def _row(self, cells: Sequence[Any]) -> Any:
        return self.gateway.call(
            self.gateway.paimon.data.GenericRow(0), "of", self.gateway.array(cells)
        )

    def _array(self, values: Sequence[Any]) -> Any:
        return self.gateway.paimon.data.GenericArray(self.gateway.array(values))

    def _map(self, keys: pa.Array, values: pa.Array, key: DataType, value: DataType) -> Any:
        made = self.gateway.jvm.java.util.HashMap()
        for one, other in zip(keys, values, strict=True):
            self.gateway.call(made, "put", self.java(one, key), self.java(other, value))
        return self.gateway.paimon.data.GenericMap(made)

    def _atomic(self, value: pa.Scalar, kind: AtomicType) -> Any:
        jvm, data, root = self.gateway.jvm, self.gateway.paimon.data, kind.root
        if root in ("CHAR", "VARCHAR"):
            return data.BinaryString.fromString(value.as_py())
        if root.startswith("TIMESTAMP"):
            millis, nanos = divmod(value.value * _NANOS[value.type.unit], 1_000_000)
            return data.Timestamp.fromEpochMillis(millis, nanos)
        if root == "DECIMAL":
            number = jvm.java.math.BigDecimal(str(value.as_py()))
            return data.Decimal.fromBigDecimal(number, kind.precision, kind.scale)
        if root == "DATE":
            return value.value
        if root == "TIME":
            return value.value * _NANOS[value.type.unit] // 1_000_000
        found = value.as_py()
        if root == "BLOB":
            return data.BlobData(bytearray(found))
        if root in _BOXES:
            return self.gateway.boxed(found, _BOXES[root])
        return bytearray(found) if isinstance(found, bytes) else found

    # -- from Java ------------------------------------------------------------------------------

    def read(self, row: Any, place: int, kind: DataType) -> Any:
        """The value at a place of a row or an array, as `pa.array` takes it."""
        if row.isNullAt(place):
            return None
        if isinstance(kind, ArrayType):
            return self._elements(row.getArray(place), kind.element)
        if isinstance(kind, VectorType):
            return [float(each) for each in row.getVector(place).toFloatArray()]
        if isinstance(kind, MapType | MultisetType):
            found = row.getMap(place)
            value = kind.value if isinstance(kind, MapType) else kt.parse_sql_type("INT")
            key = kind.key if isinstance(kind, MapType) else kind.element
            keys, values = (
                self._elements(found.keyArray(), key),
                self._elements(found.valueArray(), value),
            )
            return list(zip(keys, values, strict=True))
        if isinstance(kind, RowType):
            inner = row.getRow(place, len(kind.fields))
            return {f.name: self.read(inner, i, f.type) for i, f in enumerate(kind.fields)}
        assert isinstance(kind, AtomicType)
        return self._read_atomic(row, place, kind)

    def _elements(self, array: Any, kind: DataType) -> list[Any]:
        return [self.read(array, place, kind) for place in range(array.size())]

    def _read_atomic(self, row: Any, place: int, kind: AtomicType) -> Any:
        root = kind.root
        if root in ("CHAR", "VARCHAR"):
            return row.getString(place).toString()
        if root.startswith("TIMESTAMP"):
            found = row.getTimestamp(place, kind.precision)
            nanos = found.getMillisecond() * 1_000_000 + found.getNanoOfMillisecond()
            return nanos // _NANOS[kind.to_arrow().unit]
        if root == "DECIMAL":
            found = row.getDecimal(place, kind.precision, kind.scale)
            return found.toBigDecimal()  # the gateway makes Python's of it
        if root in ("BINARY", "VARBINARY"):
            return bytes(row.getBinary(place))
        if root == "BLOB":
            return bytes(row.getBlob(place).toData())
        if root == "VARIANT":
            variant = row.getVariant(place)
            return {"value": bytes(variant.value()), "metadata": bytes(variant.metadata())}
        if root == "TIME":
            return row.getInt(place) * 1_000_000 // _NANOS[kind.to_arrow().unit]
        found = getattr(row, f"get{_GETTERS[root]}")(place)
        return float(found) if root in ("FLOAT", "DOUBLE") else found


_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_BOXES = {"TINYINT": "Byte", "SMALLINT": "Short", "BIGINT": "Long", "FLOAT": "Float"}
_GETTERS = {
    "BOOLEAN": "Boolean", "TINYINT": "Byte", "SMALLINT": "Short", "INT": "Int", "BIGINT": "Long",
    "FLOAT": "Float", "DOUBLE": "Double", "DATE": "Int",
}  # fmt: skip
