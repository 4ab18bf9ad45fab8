"""What an overwrite through the data source replaces: everything, or some partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from keytide.commit.transaction import Transaction
from keytide.errors import InvalidError
from keytide.format.binary_row import decode_rows
from keytide.snapshot.view import TableView
from keytide.spark.option_names import GivenOptions
from keytide.spark.option_table import PARTITIONS, WHERE_REPLACED
from keytide.write.partition_spec import every_partition, fitting, partition_condition

__all__ = ["Replacing", "replacing"]


class Replacing(Protocol):
    """Determines which partitions are replaced, once the rows are written."""

    def __call__(self, transaction: Transaction) -> Callable[[bytes], bool]:
        """A function that tests a partition. Raises `InvalidError` for rows in other partitions."""
        ...


def replacing(options: GivenOptions, view: TableView) -> Replacing:
    """What the options select. Raises `InvalidError` for a condition on other columns.

    Only partition columns are allowed in the condition. REQUIRES: keys stay in their partitions.
    Tables where keys move have dynamic buckets.
    """
    where = options.value(WHERE_REPLACED)
    if where is None and options.value(PARTITIONS) != "dynamic":
        return _everything
    return _touched if where is None else _Where(where, view)


def _everything(transaction: Transaction) -> Callable[[bytes], bool]:
    return every_partition


def _touched(transaction: Transaction) -> Callable[[bytes], bool]:
    has_partitions = transaction.view.schema.partition_keys
    return transaction.touched() if has_partitions else every_partition


@dataclass(frozen=True)
class _Where:
    """The partitions that match a condition. Rows in other partitions are refused."""

    where: str
    view: TableView

    def __post_init__(self) -> None:
        self._fits()

    def _fits(self) -> Callable[[bytes], bool]:
        schema, name = self.view.schema, self.view.name
        predicate = partition_condition(self.where, schema, name)
        return fitting([predicate], schema, name, self.view.options.partition_default_name)

    def __call__(self, transaction: Transaction) -> Callable[[bytes], bool]:
        fits = self._fits()
        outside = [each for each in transaction.touched().partitions if not fits(each)]
        if outside:
            fields = self.view.schema.partition_fields()
            columns = decode_rows(outside[:1], [field.type for field in fields])
            found = ", ".join(
                f"{field.name} = {column[0].as_py()!r}"
                for field, column in zip(fields, columns, strict=True)
            )
            raise InvalidError(
                f"table {self.view.name}: there are rows with {found}, which do not satisfy "
                f"'{WHERE_REPLACED}' = {self.where!r}; remove these rows"
            )
        return fits
