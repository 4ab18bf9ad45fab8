"""Schema files: the columns, keys and options of a table.

A schema is never edited: a change writes the next id. Readers match columns of two schemas by field
id, so ids are assigned once and never reused.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.errors import DataError, InvalidError, NotFoundError, UnsupportedError
from keytide.format.json_document import (
    INTEGER,
    OBJECTS,
    TEXT,
    TEXT_BY_NAME,
    TEXTS,
    TIME,
    member,
    optional_member,
    read_document,
    write_document,
)
from keytide.options import keys
from keytide.types import (
    ArrayType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
    VectorType,
    arrow_schema,
    parse_field,
)

# Persisted in schema and data files, so it must not change. Ids of system columns are as high as 31
# bits allow and those of key columns begin halfway, so they never collide with ids of table
# columns.
SCHEMA_VERSION = 3
KEY_FIELD_ID_START = 1073741823
NO_UPSERTS = "none"
VALUE_KIND_FIELD_ID = 2147483645
SEQUENCE_FIELD_ID = 2147483646
KEY_PREFIX = "_KEY_"
SYSTEM_NAMES = ("_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "rowkind", "_ROW_ID")


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's definition.

    ``primary_keys`` keeps its order, which bucket hashing depends on, and includes the partition
    columns that are part of the key. ``highest_field_id`` is the largest id ever used in the table,
    including nested and dropped columns. It is -1 if there were none.
    """

    id: int
    fields: tuple[Field, ...]
    highest_field_id: int
    partition_keys: tuple[str, ...] = ()
    primary_keys: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    comment: str | None = None
    time_millis: int = 0

    @classmethod
    def create(
        cls,
        fields: Sequence[Field],
        *,
        partition_keys: Sequence[str] = (),
        primary_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
        time_millis: int = 0,
    ) -> TableSchema:
        """The first schema of a new table: ids are assigned, and key columns become NOT NULL.

        Key columns are not changed if the option 'primary-key.nullable' is 'true'. Raises
        InvalidError for what :func:`validate_schema` refuses.
        """
        check_fields(fields)
        allows_null = (options or {}).get(keys.PRIMARY_KEY_NULLABLE, "false").lower() == "true"
        required = () if allows_null else primary_keys
        numbered = assign_field_ids(
            [
                replace(f, type=f.type.with_nullable(False)) if f.name in required else f
                for f in fields
            ]
        )
        schema = cls(
            id=0,
            fields=numbered,
            highest_field_id=highest_field_id(numbered),
            partition_keys=tuple(partition_keys),
            primary_keys=tuple(primary_keys),
            options=dict(options or {}),
            comment=comment,
            time_millis=time_millis,
        )
        validate_schema(schema)
        return schema

    @classmethod
    def from_json(cls, data: bytes, path: str = "schema") -> TableSchema:
        """Read a schema file. Older versions get the defaults of their time.

        Raises UnsupportedError, which names ``path``, for a version newer than this release
        supports, and DataError for a file that is damaged, lacks members or has keys that are not
        columns.
        """
        document = read_document(data, path)
        version = optional_member(document, "version", INTEGER, path, default=1)
        if version > SCHEMA_VERSION:
            raise UnsupportedError(
                f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, the latest "
                "that this release reads; use a newer release for this table"
            )
        options = optional_member(document, "options", TEXT_BY_NAME, path, default={})
        # A missing option in a file of that time had another meaning than it has now.
        defaults = {keys.BUCKET: "1"} if version < 2 else {}
        defaults_before = defaults | ({keys.FILE_FORMAT: "orc"} if version < 3 else {})
        # A table with a key index has the key among its options.
        indexed_key = (name for name in options.get(keys.UPSERT_KEY, "").split(",") if name)
        schema = cls(
            id=member(document, "id", INTEGER, path),
            fields=_parsed_fields(member(document, "fields", OBJECTS, path), path),
            highest_field_id=member(document, "highestFieldId", INTEGER, path),
            partition_keys=tuple(member(document, "partitionKeys", TEXTS, path)),
            primary_keys=tuple(member(document, "primaryKeys", TEXTS, path) or indexed_key),
            options=defaults_before | options,
            comment=optional_member(document, "comment", TEXT, path),
            time_millis=optional_member(document, "timeMillis", TIME, path, default=0),
        )
        unknown = {*schema.partition_keys, *schema.primary_keys} - {*schema.names}
        if unknown:
            raise DataError(
                f"{path}: the keys {_listed(sorted(unknown))} are not columns of the schema, which "
                f"has {_listed(schema.names)}; the file is damaged, restore it from a copy"
            )
        return schema

    def to_json(self) -> bytes:
        """The schema file, with members in Java's order. Always written in the latest version.

        Raises InvalidError for a member that no reader could read.
        """
        return write_document(self, _document, TableSchema.from_json)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in table order."""
        return tuple(f.name for f in self.fields)

    @cached_property
    def by_name(self) -> Mapping[str, Field]:
        """The columns by their names, in table order."""
        return {f.name: f for f in self.fields}

    @property
    def is_indexed(self) -> bool:
        """Whether a key index says which row is current, so that files are never merged."""
        return self.upsert_mode != NO_UPSERTS

    @property
    def upsert_mode(self) -> str:
        """What an upsert does: 'none' if versions are merged on read."""
        return self.options.get(keys.UPSERT_MODE, NO_UPSERTS).lower()

    @property
    def trimmed_primary_keys(self) -> tuple[str, ...]:
        """The key columns that files are sorted and merged by, in primary-key order.

        Without partition columns. Empty for tables with a key index.
        """
        if self.is_indexed:
            return ()
        return tuple(name for name in self.primary_keys if name not in self.partition_keys)

    @property
    def is_cross_partition(self) -> bool:
        """Whether the key lacks a partition column, so that an update can move a row."""
        return bool(self.primary_keys) and not set(self.partition_keys) <= set(self.primary_keys)

    def field(self, name: str) -> Field:
        """The column with that name.

        Raises NotFoundError, which suggests a similar name, if there is none.
        """
        found = self.by_name.get(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self.names) or self.names
        raise NotFoundError(f"No column {name!r}; did you mean {', '.join(near)}?")

    def select(self, names: Iterable[str]) -> tuple[Field, ...]:
        """The columns with these names, in that order. Raises NotFoundError if one is missing."""
        return tuple(self.field(name) for name in names)

    def partition_fields(self) -> tuple[Field, ...]:
        """The partition columns, in partition order."""
        return self.select(self.partition_keys)

    def trimmed_primary_key_fields(self) -> tuple[Field, ...]:
        """The columns of :attr:`trimmed_primary_keys`."""
        return self.select(self.trimmed_primary_keys)

    def key_fields(self) -> tuple[Field, ...]:
        """The ``_KEY_`` columns of a data file: one per trimmed key column, with the same type."""
        return tuple(
            Field(KEY_FIELD_ID_START + f.id, KEY_PREFIX + f.name, f.type)
            for f in self.trimmed_primary_key_fields()
        )

    def arrow_schema(self) -> pa.Schema:
        """The table's columns as an Arrow schema, including nullability."""
        return arrow_schema(self.fields)


def assign_field_ids(fields: Sequence[Field], first_id: int = 0) -> tuple[Field, ...]:
    """The same fields with new ids, starting at ``first_id``.

    A top-level field is numbered before its nested members. Inside nested types, a member is
    numbered after its own members.
    """
    ids = itertools.count(first_id)
    return tuple(replace(f, id=next(ids), type=_renumbered(f.type, ids)) for f in fields)


def highest_field_id(fields: Sequence[Field]) -> int:
    """The largest id among the fields and their nested members. -1 if there are none."""
    return max((f.id for f in all_fields(fields)), default=-1)


def validate_schema(schema: TableSchema) -> None:
    """Check the structural rules that every table must satisfy, whatever its options.

    Raises InvalidError for missing, duplicate or reserved names, for key and partition columns that
    do not exist or have a nested type, and for a key that consists only of partition columns.
    """
    if not schema.fields:
        raise InvalidError("a table needs at least one column; found none")
    check_fields(schema.fields)
    _check_unique(schema.names, "the table")
    for name in schema.names:
        if name in SYSTEM_NAMES:
            raise InvalidError(
                f"column {name!r}: the names {_listed(SYSTEM_NAMES)} are reserved for system "
                "columns; rename the column"
            )
        if name.upper().startswith(KEY_PREFIX):  # Spark is case-insensitive
            raise InvalidError(
                f"column {name!r} begins with {KEY_PREFIX!r}, a name that is reserved in the "
                "schema of data files; rename the column"
            )
    _check_key_columns(schema, schema.partition_keys, "partition key")
    _check_key_columns(schema, schema.primary_keys, "primary key")
    if schema.primary_keys and set(schema.primary_keys) <= set(schema.partition_keys):
        raise InvalidError(
            f"the primary key {_listed(schema.primary_keys)} consists of partition columns only, "
            f"so each partition of {_listed(schema.partition_keys)} would have one row; add "
            "a column to the primary key"
        )


def check_fields(fields: Iterable[Field]) -> None:
    """Raise InvalidError for columns, or members of them, that cannot be stored under their names.

    A name must not be blank, contain a NUL character, look like a Polars pattern, or occur twice
    among its neighbors. A type must not be nested too deeply.
    """
    levels = list(fields)
    for depth in itertools.count():
        if not levels:
            return
        if depth > NESTING_MAX:
            raise InvalidError(
                f"a column is more than {NESTING_MAX} levels deep, found {levels[0].name!r} there; "
                "reduce the nesting, or store the inner part as a string"
            )
        parts: list[Field] = []
        for each in levels:
            _check_name(each.name)
            type_ = each.type
            # The parts one level below, those without a name as columns with the name of the whole.
            if isinstance(type_, RowType):
                _check_unique([member.name for member in type_.fields], f"column {each.name!r}")
                parts += type_.fields
            elif isinstance(type_, MapType):
                parts += [replace(each, type=type_.key), replace(each, type=type_.value)]
            elif isinstance(type_, ArrayType | MultisetType | VectorType):
                parts.append(replace(each, type=type_.element))
        levels = parts


# Reading and writing process such a type recursively, as other engines do. Deep types break them.
NESTING_MAX = 32


def _check_name(name: str) -> None:
    if not name.strip():
        raise InvalidError(f"column {name!r} has no name; give it one")
    if "\0" in name:
        raise InvalidError(
            f"column {name!r} has a NUL character in its name, where other programs "
            "truncate the name; remove it"
        )
    if name == "*" or (name.startswith("^") and name.endswith("$")):
        raise InvalidError(
            f"column {name!r} has a name that looks like a pattern for several columns; rename it"
        )


def _document(schema: TableSchema) -> dict[str, Any]:
    comment = {} if schema.comment is None else {"comment": schema.comment}
    return {
        "version": SCHEMA_VERSION,
        "id": schema.id,
        "fields": [f.to_json() for f in schema.fields],
        "highestFieldId": schema.highest_field_id,
        "partitionKeys": schema.partition_keys,
        # For other engines, a table whose rows need no merge is a table without a key.
        "primaryKeys": () if schema.is_indexed else schema.primary_keys,
        "options": schema.options,
        **comment,
        "timeMillis": schema.time_millis,
    }


def _parsed_fields(members: Sequence[Mapping[str, Any]], path: str) -> tuple[Field, ...]:
    try:
        return tuple(map(parse_field, members))
    except (InvalidError, RecursionError) as error:
        raise DataError(f"{path}: invalid column: {error}") from error


def _renumbered(type_: DataType, ids: Iterator[int]) -> DataType:
    if isinstance(type_, (ArrayType, MultisetType, VectorType)):
        return replace(type_, element=_renumbered(type_.element, ids))
    if isinstance(type_, MapType):
        key = _renumbered(type_.key, ids)
        return replace(type_, key=key, value=_renumbered(type_.value, ids))
    if isinstance(type_, RowType):
        return replace(
            type_,
            fields=tuple(
                # A member is numbered after its own members.
                replace(m, type=_renumbered(m.type, ids), id=next(ids))
                for m in type_.fields
            ),
        )
    return type_


def all_fields(fields: Iterable[Field]) -> Iterator[Field]:
    """The fields and their nested members, at any depth."""
    for each in fields:
        yield each
        yield from all_fields(_members(each.type))


def _members(type_: DataType) -> Iterator[Field]:
    if isinstance(type_, (ArrayType, MultisetType, VectorType)):
        yield from _members(type_.element)
    elif isinstance(type_, MapType):
        yield from _members(type_.key)
        yield from _members(type_.value)
    elif isinstance(type_, RowType):
        yield from type_.fields


def _check_key_columns(schema: TableSchema, names: Sequence[str], role: str) -> None:
    missing = [name for name in names if name not in schema.by_name]
    if missing:
        raise InvalidError(
            f"the {role} {_listed(names)} names columns that do not exist: {_listed(missing)}. The "
            f"columns are {_listed(schema.names)}"
        )
    _check_unique(names, f"the {role}")
    for column in schema.select(names):
        if column.type.is_nested:
            raise InvalidError(
                f"the {role} names column {column.name!r} of type {column.type.root}; expected a "
                "column of a scalar type"
            )


def _check_unique(names: Sequence[str], whole: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InvalidError(
            f"{whole} has duplicate names: {_listed(repeated)} in {_listed(names)}; use each "
            "column once"
        )


def _listed(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"
