"""The place up to which a table was truncated. Events before it are ignored.

It is a property of the latest snapshot. So it is committed atomically with the truncation, a
rollback reverts both, and a branch has both. Every commit of a flow records the place that it used,
and conflicts if another commit has truncated the table meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.commit.change import Progress, current_progress
from keytide.commit.transaction import Transaction
from keytide.errors import ConflictError, DataError, InvalidError
from keytide.format.arrow import from_arrow
from keytide.format.snapshot import Snapshot
from keytide.merge.order import MergeOrder
from keytide.predicate.literals import scalar_of_text
from keytide.predicate.predicate import (
    Comparison,
    Predicate,
    conjunction,
    disjunction,
    plain,
    row_filter,
)
from keytide.predicate.value_columns import stored_column
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.types import Field, type_from_arrow

T = TypeVar("T")
TruncationLookup: TypeAlias = "Callable[[Transaction], Truncation]"

_ROW = scratch("row")
_PROPERTY = "keytide.auto-cdc.truncated"


@dataclass(frozen=True)
class Truncation:
    """A place in the order of events. Without values if there was no truncation. Can be pickled.

    `stored_text` is the property that stores it, None if there is none.
    """

    fields: tuple[Field, ...]
    place: tuple[pa.Scalar, ...] = ()
    stored_text: str | None = None

    @classmethod
    def of(cls, table: StoredTable, newest: Snapshot | None, view: TableView) -> Truncation:
        """The place in a snapshot of a table. Raises `DataError` if it is invalid."""
        fields = tuple(view.schema.field(name) for name in view.options.sequence_field)
        stored_text = _stored_text(table, newest)
        if not stored_text:
            return cls(fields, (), stored_text)
        try:
            place = tuple(
                pa.scalar(bytes.fromhex(text), field.type.to_arrow())
                if _is_bytes(field.type.to_arrow())
                else scalar_of_text(text, field, view.name)
                for text, field in zip(json.loads(stored_text), fields, strict=True)
            )
        except (InvalidError, TypeError, ValueError) as error:
            raise DataError(
                f"table {view.name}: property {_PROPERTY!r} of the latest snapshot is "
                f"{stored_text!r}, which is not a valid sequence of "
                f"{', '.join(f.name for f in fields)}; roll the table back to an earlier snapshot"
            ) from error
        return cls(fields, place, stored_text)

    @property
    def text(self) -> str:
        """The property value for the place."""
        texts = [
            bytes(value.as_py()).hex()
            if _is_bytes(value.type)
            else str(value.cast(pa.string()).as_py())
            for value in self.place
        ]
        return json.dumps(texts) if texts else ""

    def up_to(self, places: pa.Table, table: str) -> Truncation:
        """The latest of this place and the given places, of which there must be at least one.

        Raises `InvalidError` for values that do not have the table's types.
        """
        typed = pa.table(
            {f.name: stored_column(places.column(f.name), f, table) for f in self.fields}
        )
        if self.place:
            own = [pa.repeat(value, 1) for value in self.place]
            typed = pa.concat_tables([typed, pa.table(own, names=typed.column_names)])
        chars = frozenset(f.name for f in self.fields if f.type.root == "CHAR")
        order = MergeOrder((), tuple(typed.column_names), padded=chars)
        sorted_ = order.sort(from_arrow(typed).with_row_index(_ROW), arrival_decides=True)
        last = typed.slice(sorted_[_ROW][-1], 1)
        place = tuple(last.column(f.name)[0] for f in self.fields)
        return Truncation(self.fields, place, self.stored_text)

    @property
    def remaining_filter(self) -> Predicate | None:
        """The condition for rows at the place or after it. None if this is true for all rows."""
        found: Predicate | None = None
        for field, value in reversed(list(zip(self.fields, self.place, strict=False))):
            at = plain(value)
            if found is None:
                found = Comparison(field.name, ">=", at)
            else:
                same = conjunction([Comparison(field.name, "=", at), found])
                assert same is not None
                found = disjunction([Comparison(field.name, ">", at), same])
        return found

    def remaining_rows(self, rows: pa.Table, table: str) -> pa.Table:
        """The rows that it does not remove. They can have other types than the table."""
        predicate = self.remaining_filter
        if predicate is None:
            return rows
        typed = {f.name: stored_column(rows.column(f.name), f, table) for f in self.fields}
        stays = from_arrow(pa.table(typed)).select(row_filter(predicate, self.fields))
        return rows.filter(stays.to_series().to_arrow())

    @property
    def in_microseconds(self) -> Truncation:
        """The same for rows whose times have no nanoseconds, for which it removes the same rows."""
        fields, place = list(self.fields), list(self.place)
        for at, value in enumerate(self.place):
            if pa.types.is_timestamp(value.type) and value.type.unit == "ns":
                micros = -(-value.value // 1000)
                type_ = pa.timestamp("us", value.type.tz)
                fields[at] = Field(fields[at].id, fields[at].name, type_from_arrow(type_))
                place[at] = pa.scalar(micros, pa.int64()).cast(type_)
                if micros * 1000 != value.value:  # no such row is exactly at the place
                    return Truncation(
                        tuple(fields[: at + 1]), tuple(place[: at + 1]), self.stored_text
                    )
        return Truncation(tuple(fields), tuple(place), self.stored_text)

    def progress(self, known: Truncation) -> Progress:
        """The record of a commit that moves on from a known place."""
        return Progress({_PROPERTY: known.stored_text}, {_PROPERTY: self.text})


def recorded_truncation(transaction: Transaction, table: StoredTable) -> Truncation:
    """The place that determines the rows of a transaction, recorded by its commit."""
    known = Truncation.of(table, transaction.state.snapshot, transaction.view)
    # Without rows there is no record.
    transaction.progress = Progress(
        {_PROPERTY: known.stored_text}, {_PROPERTY: known.text}, stands_alone=False
    )
    return known


def retry_after_truncation(table: StoredTable, write: Callable[[TruncationLookup], T]) -> T:
    """The result of `write`, whose transactions call its argument to get the place to use.

    It is called again if the table was truncated meanwhile. Raises what `write` raises.
    """
    went_by: Truncation | None = None

    def going(transaction: Transaction) -> Truncation:
        nonlocal went_by
        went_by = recorded_truncation(transaction, table)
        return went_by

    while True:
        try:
            return write(going)
        except ConflictError:  # noqa: PERF203  # as a rule there is none
            live = table.live
            stored_text = _stored_text(live, live.metadata.latest_snapshot())
            if went_by is None or stored_text == went_by.stored_text:
                raise


def _stored_text(table: StoredTable, newest: Snapshot | None) -> str | None:
    return current_progress(table.metadata, newest, (_PROPERTY,)).get(_PROPERTY)


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_))
