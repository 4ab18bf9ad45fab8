"""Partition specs of overwrites: what they replace, and the partitions that this means.

That is the whole table, the partitions of its rows, or those of a spec. The result is a predicate
over partitions, not a list of files. It is determined before any row is read. A commit evaluates it
again at every attempt, so files that were added in the meantime are replaced too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, field
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.binary_row import decode_rows, encode_rows
from keytide.format.schema import TableSchema
from keytide.options import keys
from keytide.predicate.condition import Condition, predicate_of
from keytide.predicate.literals import key_value, scalar_of_text
from keytide.predicate.predicate import Predicate, row_filter
from keytide.snapshot.state import TableView
from keytide.types import Field

# -- specs -----------------------------------------------------------------------------------------


Place: TypeAlias = "Mapping[str, Any] | str | Predicate"
"""Values for some or all partition columns, by column or as a string: `dt=2026-01-31,hour=7`; or a
predicate over them.
"""


def partition_condition(where: Condition, schema: TableSchema, table: str) -> Predicate:
    """A condition on partition columns, such as `dt > '2026-01-31' and hour < 7`.

    Raises `InvalidError` for a table without partitions, and the errors of `predicate_of`.
    """
    fields = schema.partition_fields()
    if not fields:
        raise InvalidError(
            f"table {table} has no partitions, so {shown(where)} selects none; remove it"
        )
    return predicate_of(where, fields, table)


def every_partition(partition: bytes) -> bool:
    """Matches every partition."""
    return True


@dataclass(frozen=True)
class TouchedPartitions:
    """Matches the partitions of some rows."""

    partitions: frozenset[bytes]

    def __call__(self, partition: bytes) -> bool:
        """Whether the partition is one of them."""
        return partition in self.partitions


@dataclass(frozen=True)
class PartitionSpec:
    """Values of some or all partition columns. Matches every partition that has them.

    A picklable predicate over partition rows.
    """

    table: str
    partition_fields: tuple[Field, ...]
    fields: tuple[Field, ...]
    values: tuple[pa.Array, ...]
    """One value for each of `fields`, in its column's exact type."""
    row: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Encode the values, because a partition is identified by its binary row."""
        object.__setattr__(self, "row", self._encoded(self.values))

    @classmethod
    def parse(cls, given: Mapping[str, Any], schema: TableSchema, table: str) -> PartitionSpec:
        """The spec for values by column. Raises `InvalidError` for an invalid partition."""
        wrong = [name for name in given if name not in schema.partition_keys]
        if wrong or not given:
            found = ", ".join(map(repr, wrong)) or "no column"
            there = ", ".join(schema.partition_keys) or "none: do not give a partition"
            raise InvalidError(
                f"table {table}: the partition names {found}; the partition columns are {there}"
            )
        fields = tuple(f for f in schema.partition_fields() if f.name in given)
        values = tuple(_value(given[f.name], f, table) for f in fields)
        return cls(table, schema.partition_fields(), fields, values)

    @classmethod
    def of_text(cls, text: str, schema: TableSchema, table: str, null_name: str) -> PartitionSpec:
        """The spec for a string such as `dt=2026-01-31,hour=7`. Raises `InvalidError` like `parse`.

        `null_name` is the spelling of NULL.
        """
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, mark, value = (piece.strip() for piece in part.partition("="))
            if not mark:
                raise InvalidError(
                    f"table {table}: {shown(text)} is not a partition; write it as "
                    f"{'=...,'.join(schema.partition_keys) or 'column'}=..."
                )
            if name in schema.partition_keys:
                field = schema.field(name)
                is_null = value == null_name
                given[name] = None if is_null else scalar_of_text(value, field, table)
            else:
                given[name] = value
        return cls.parse(given, schema, table)

    def __call__(self, partition: bytes) -> bool:
        """Whether the partition has these values."""
        columns = decode_rows([partition], [f.type for f in self.partition_fields])
        by_name = dict(zip((f.name for f in self.partition_fields), columns, strict=True))
        return self._encoded(tuple(by_name[f.name] for f in self.fields)) == self.row

    def filled(self, rows: pa.Table) -> pa.Table:
        """The rows with the partition columns that they lack."""
        for f, value in zip(self.fields, self.values, strict=True):
            if f.name not in rows.column_names:
                rows = rows.append_column(f.name, pa.repeat(value[0], rows.num_rows))
        return rows

    def check(self, rows: pa.Table) -> None:
        """Raise `InvalidError` for rows, in the table's exact types, outside the partition."""
        for f, value in zip(self.fields, self.values, strict=True):
            column = rows.column(f.name)
            # Compared by their bytes, like partitions: NaN equals itself there.
            found = pc.value_counts(column)
            (wanted,) = encode_rows([value], [f.type])
            rows_found = encode_rows([found.field("values")], [f.type])
            outside = found.filter(pa.array([row != wanted for row in rows_found], pa.bool_()))
            if len(outside):
                other = outside.field("values")[0].as_py()
                count = pc.sum(outside.field("counts")).as_py()
                raise InvalidError(
                    f"table {self.table}: {count} of {len(column)} rows are not in the partition "
                    f"to overwrite: {f.name!r} should be {value[0].as_py()!r}, found {other!r}; "
                    "remove these rows, or overwrite without a partition"
                )

    def _encoded(self, values: tuple[pa.Array, ...]) -> bytes:
        (row,) = encode_rows(list(values), [f.type for f in self.fields])
        return row


def fitting(
    places: Sequence[Place], schema: TableSchema, table: str, null_name: str
) -> Callable[[bytes], bool]:
    """Matches the partitions of the given places, or every partition if there are none.

    Raises `InvalidError` for an invalid partition. `null_name` is the spelling of NULL in strings.
    """
    if not places:
        return every_partition
    specs: list[Callable[[bytes], bool]] = []
    for place in places:
        if isinstance(place, str):
            specs.append(PartitionSpec.of_text(place, schema, table, null_name))
        elif isinstance(place, Mapping):
            specs.append(PartitionSpec.parse(place, schema, table))
        else:
            specs.append(_condition(place, schema))
    return lambda partition: any(spec(partition) for spec in specs)


def _condition(predicate: Predicate, schema: TableSchema) -> Callable[[bytes], bool]:
    fields = schema.partition_fields()
    kept = row_filter(predicate, fields)

    def fits(partition: bytes) -> bool:
        columns = decode_rows([partition], [field.type for field in fields])
        names = [field.name for field in fields]
        return not pl.DataFrame(pa.table(columns, names)).filter(kept).is_empty()

    return fits


def _value(value: Any, field: Field, table: str) -> pa.Array:
    stored = key_value(value, field, table)
    if not stored.is_valid and not field.type.nullable:
        raise InvalidError(
            f"table {table}: partition column {field.name!r} is {field.type.sql()}, found NULL; "
            "give a value"
        )
    return pa.array([stored], type=stored.type)


# -- replaced partitions ---------------------------------------------------------------------------


def partition_to_replace(
    view: TableView, partition: Mapping[str, Any] | None
) -> PartitionSpec | None:
    """The named partition, or None if the rows or the whole table determine what is replaced.

    Raises `InvalidError` for an invalid partition, and `UnsupportedError` if keys of other
    partitions would have to leave them.
    """
    spec = None if partition is None else PartitionSpec.parse(partition, view.schema, view.name)
    if view.moves_keys and (spec is not None or view.options.dynamic_partition_overwrite):
        raise UnsupportedError(
            f"table {view.name}: its primary key does not contain the partition columns, so keys "
            "of the new rows can exist in other partitions. Set "
            f"'{keys.DYNAMIC_PARTITION_OVERWRITE}' to 'false' to replace the whole table, or "
            "delete rows and then write"
        )
    return spec
