"""What the connectors for a lake's own tables have in common on the driver."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa

from keytide.catalogs.catalog import Catalog
from keytide.commit.strays import remove_strays
from keytide.commit.transaction import Transaction, discard
from keytide.definition.defaults import write_default
from keytide.definition.generated import generation_texts
from keytide.definition.kind import kind_of
from keytide.dml.fragments import Told, read_fragments
from keytide.dml.handles import StoredHandle
from keytide.dml.spi import (
    ColumnHandle,
    ConnectorMetadata,
    ConnectorSession,
    ConnectorTableSchema,
    Fragment,
    RowChangeParadigm,
    RowChanges,
)
from keytide.dml.values import narrowed
from keytide.errors import ConnectorError, InvalidError
from keytide.format.snapshot import Operation
from keytide.options import keys
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.snapshot.stored import PinnedTable
from keytide.write.task import Written

__all__ = ["StoredMetadata", "asked_by", "take_written"]

H = TypeVar("H", bound=StoredHandle)


@dataclass(frozen=True)
class StoredMetadata(ConnectorMetadata, Generic[H]):
    """Metadata operations for tables of a catalog, including the end of a statement."""

    catalog: Catalog
    is_changed_by_key: ClassVar[bool]

    @abstractmethod
    def handle_of(self, table: PinnedTable) -> H:
        """The handle of a table, in a known state or after a compaction.

        Raises `UnsupportedError` for a table that cannot be written to.
        """

    @abstractmethod
    def commit(self, session: ConnectorSession, table: H, told: Sequence[Told]) -> None:
        """Commit the results of sources and sinks once, or not at all if nothing changed."""

    # -- tables

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """See `ConnectorMetadata`."""
        names = self.catalog.tables()
        kinds = {n: kind_of(self.catalog.table(n).schema) for n in names}
        return [n for n in names if kinds[n].is_changed_by_key is self.is_changed_by_key]

    def get_table_handle(self, session: ConnectorSession, name: str) -> H | None:
        """See `ConnectorMetadata`.

        Raises `UnsupportedError` for a table that cannot be written to.
        """
        catalog = self.catalog.pinned()
        found = catalog.find(name)
        if found is None:
            return None
        handle = self.handle_of(catalog.table(found).pinned())
        if catalog.pins is not None:
            catalog.pins.renew(handle.table)  # the rest of the statement must read this newer state
        return handle

    def get_table_schema(self, session: ConnectorSession, table: H) -> ConnectorTableSchema:
        """See `ConnectorMetadata`."""
        schema = table.view.schema
        made = generation_texts(table.view.options)
        defaults = {f.name: write_default(f) for f in schema.fields if f.default_value is not None}
        columns = tuple(
            ColumnHandle(
                f.name,
                f.type,
                # A generated column needs no value in an INSERT, because the table computes it.
                f.nullable or f.name in made,
                defaults.get(f.name),
                is_generated=f.name in made,
            )
            for f in schema.arrow_schema()
        )
        return ConnectorTableSchema(table.table.name, columns, tuple(schema.primary_keys))

    def apply_filter(
        self, session: ConnectorSession, table: H, terms: Sequence[Predicate]
    ) -> tuple[H, Sequence[Predicate]]:
        """See `ConnectorMetadata`. No term remains."""
        predicate = conjunction([*conjuncts(table.predicate), *terms])
        return replace(table, predicate=predicate), ()

    # -- changes

    def check_changes(self, session: ConnectorSession, table: H, changes: RowChanges) -> None:
        """See `ConnectorMetadata`."""
        name = table.view.options.rowkind_field
        if name in changes.sets:
            raise InvalidError(
                f"{table}: an UPDATE cannot set {name!r}: '{keys.ROWKIND_FIELD}' makes it the "
                "row kind; use DELETE to delete rows"
            )
        made = changes.sets & generation_texts(table.view.options).keys()
        if made and session.operation == "UPDATE":
            raise InvalidError(
                f"{table}: an UPDATE cannot set {min(made)!r}, which is generated from other "
                "columns; set those"
            )
        marker = table.view.options.out_of_order_column
        if marker in changes.sets:
            raise InvalidError(
                f"{table}: an UPDATE cannot set {marker!r}, in which each write records late "
                f"rows ('{keys.UPSERT_OUT_OF_ORDER_COLUMN}'); remove it from the statement"
            )

    def begin_delete(self, session: ConnectorSession, table: H) -> H:
        """See `ConnectorMetadata`."""
        return table.begun()

    def finish_delete(
        self, session: ConnectorSession, table: H, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. Raises as `commit`."""
        told = read_fragments(fragments)
        self.commit(session, table, told)
        return sum(int(each.facts["rows"]) for each in told)

    def abort_delete(
        self, session: ConnectorSession, table: H, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        if table.settling is not None and table.settling.has_begun:
            return  # the commit has cleaned up, unless a snapshot may refer to the files
        discard(table.view, _written(read_fragments(fragments)))
        remove_strays(table.view)

    def begin_update(
        self, session: ConnectorSession, table: H, updated_columns: Sequence[str]
    ) -> H:
        """See `ConnectorMetadata`."""
        return table.begun(updated_columns)

    finish_update, abort_update = finish_delete, abort_delete

    def get_row_change_paradigm(self, session: ConnectorSession, table: H) -> RowChangeParadigm:
        """See `ConnectorMetadata`. An update is one whole row."""
        return RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS

    def apply_values(
        self, session: ConnectorSession, table: H, values: Mapping[str, pa.Array]
    ) -> H:
        """See `ConnectorMetadata`."""
        return replace(table, predicate=narrowed(table.predicate, values, table.view))

    finish_merge, abort_merge = finish_delete, abort_delete


def asked_by(session: ConnectorSession) -> Operation | None:
    """The operation that the snapshot of a statement records."""
    return None if session.operation is None else Operation(session.operation)


def take_written(transaction: Transaction, table: StoredHandle, told: Sequence[Told]) -> None:
    """Add the files that fragments name to the transaction. The commit begins."""
    for written in _written(told):
        transaction.take(written)
    if table.settling is not None:
        table.settling.has_begun = True


def _written(told: Sequence[Told]) -> Iterator[Written]:
    for each in told:
        if "written" in each.rows.column_names:
            for value in each.rows.column("written"):
                made = pickle.loads(value.as_py())
                if not isinstance(made, Written):
                    raise ConnectorError(
                        f"a fragment contains no files, but a {type(made).__name__}"
                    )
                yield made
