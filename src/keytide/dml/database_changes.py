"""Row-level changes of a database table, in one transaction.

First, staged rows are inserted into temporary tables. Then the table is changed set by set. If any
row has changed since it was read, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.dml.databases import (
    VERSION,
    Database,
    DatabaseColumn,
    DatabaseSession,
    DatabaseTable,
    OpenTransaction,
    quoted,
)
from keytide.dml.spi import ConnectorInsertSink
from keytide.errors import ConflictError, DataError, InvalidError


@dataclass(frozen=True)
class StagedRows:
    """The changes: each part has the fields of row ids, values, or both.

    `updated` has one part for each set of changed columns.
    """

    deleted: pa.Table | None = None
    updated: Sequence[tuple[tuple[str, ...], pa.Table]] = ()
    inserted: pa.Table | None = None


def id_names(table: DatabaseTable) -> list[str]:
    """The names of the row id fields in staged rows: those of the key, then the version."""
    return [*(f"k{i}" for i in range(len(table.key))), VERSION]


def value_names(columns: Sequence[str]) -> list[str]:
    """The names of the values in staged rows."""
    return [f"v{i}" for i in range(len(columns))]


def apply_changes(
    database: Database, table: DatabaseTable, rows: StagedRows,
    transaction: OpenTransaction | None = None,
) -> int:  # fmt: skip
    """Apply changes atomically. Returns the number of inserted, deleted and updated rows.

    In a transaction that is held open, this is the last step.

    Raises `ConflictError` if a row has changed since it was read, and `InvalidError` if the
    database refuses a row or a row is changed twice.
    """
    if transaction is not None:
        with database.errors(str(table)), transaction.used() as session:
            plan = _Changes(session, table, database)
            plan.stage(rows)
            done = plan.apply()
            commit(session)
            return done
    with database.session(str(table)) as session:
        plan = _Changes(session, table, database)
        plan.stage(rows)
        with _transaction(session):
            return plan.apply()


class Insertion(ConnectorInsertSink):
    """Rows to insert into a table: staged page by page, and inserted together.

    Staged rows are in temporary tables of a connection, so they block nobody.
    """

    def __init__(
        self, database: Database, table: DatabaseTable, columns: Sequence[str],
        held: OpenTransaction | None = None,
    ) -> None:  # fmt: skip
        self._database, self._table, self._held = database, table, held
        self._columns = [table.column(name) for name in columns]
        self._rows = 0
        self._open = ExitStack()
        self._session: DatabaseSession | None = None

    def store_rows(self, page: pa.RecordBatch) -> None:
        """Stage rows, with the columns in order."""
        if not page.num_rows:
            return
        with self._database.errors(str(self._table)), self._used() as session:
            names = value_names([""] * page.num_columns)
            arrays = [
                self._database.staged(values.cast(column.type), column)
                for values, column in zip(page.columns, self._columns, strict=True)
            ]
            session.stage(_STAGE, pa.table(arrays, names), adds=self._rows > 0)
        self._rows += page.num_rows

    def finish(self) -> int:
        """Insert the staged rows in one transaction. Returns their number."""
        places = value_names([column.name for column in self._columns])
        items = ", ".join(
            self._database.write_expression(column, f"s.{quoted(place)}")
            for place, column in zip(places, self._columns, strict=True)
        )
        names = ", ".join(quoted(column.name) for column in self._columns)
        target = f"{self._database.source(self._table)} ({names}) {self._database.insert_clause}"
        text = f"INSERT INTO {target} SELECT {items} FROM {quoted(_STAGE)} AS s"
        try:
            if not self._rows:
                return 0
            with self._database.errors(str(self._table)), self._used() as session:
                if self._held is None:
                    with _transaction(session):
                        return session.change(text)
                done = session.change(text)
                commit(session)
                return done
        finally:
            self.abort()

    def abort(self) -> None:
        """Discard the staged rows. Can be called repeatedly."""
        self._session = None
        self._open.close()

    @contextmanager
    def _used(self) -> Iterator[DatabaseSession]:
        if self._held is not None:
            with self._held.used() as session:
                yield session
            return
        if self._session is None:
            self._session = self._open.enter_context(self._database.session(str(self._table)))
        yield self._session


_STAGE = "keytide_stage"


@contextmanager
def _transaction(session: DatabaseSession) -> Iterator[None]:
    session.execute(session.database.begin)
    try:
        yield
        commit(session)
    except BaseException:
        with suppress(Exception):  # the original error is more useful, and closing rolls back too
            session.execute("ROLLBACK")
        raise


def commit(session: DatabaseSession) -> None:
    """Commit. Raises `DataError` if the outcome is unknown."""
    try:
        session.execute("COMMIT")
    except Exception as error:
        if session.database.is_remote and not getattr(error, "sqlstate", None):
            raise DataError(
                f"{session.database.label}: the connection was lost during COMMIT; check whether "
                "the change was made before you run the statement again"
            ) from None
        raise


@dataclass
class _Stage:
    """A temporary table with existing rows, values, or both."""

    name: str
    rows: int
    columns: tuple[str, ...] = ()


@dataclass
class _Changes:
    session: DatabaseSession
    table: DatabaseTable
    database: Database
    deleted: list[_Stage] = field(default_factory=list)
    updated: list[_Stage] = field(default_factory=list)
    inserted: list[_Stage] = field(default_factory=list)

    # -- before the transaction --------------------------------------------------------------------

    def stage(self, rows: StagedRows) -> None:
        """Insert all rows into temporary tables."""
        names = tuple(column.name for column in self.table.columns)
        if rows.deleted is not None:
            self.deleted += self._staged(rows.deleted, ())
        for columns, changed in rows.updated:
            self.updated += self._staged(changed, columns)
        if rows.inserted is not None:
            self.inserted += self._staged(rows.inserted, names)

    def _staged(self, rows: pa.Table, columns: tuple[str, ...]) -> list[_Stage]:
        if not rows.num_rows:
            return []
        count = len(self.deleted) + len(self.updated) + len(self.inserted)
        stage = _Stage(f"keytide_stage_{count}", rows.num_rows, columns)
        of_names = dict(zip(value_names(columns), columns, strict=True))
        arrays = {}
        for name in rows.column_names:
            arrays[name] = rows.column(name).combine_chunks()
            if name in of_names:
                column = self.table.column(of_names[name])
                arrays[name] = self.database.staged(arrays[name].cast(column.type), column)
        self.session.stage(stage.name, pa.table(arrays))
        return [stage]

    # -- in the transaction ------------------------------------------------------------------------

    def apply(self) -> int:
        """Change the table: first deletes, then updates, then inserts."""
        for stage in self.deleted:
            self._delete(stage)
        moving = [stage for stage in self.updated if self._takes_other_keys(stage)]
        for stage in moving:
            # The rows after the change, in a temporary table.
            places = dict(zip(stage.columns, value_names(stage.columns), strict=True))
            items = ", ".join(
                f"{self._new_value(places[c.name], c)} AS {quoted(c.name)}"
                if c.name in places
                else f"t.{quoted(c.name)}"
                for c in self.table.columns
            )
            self.session.execute(
                f"CREATE TEMPORARY TABLE {quoted(f'{stage.name}_moved')} AS SELECT {items} "
                f"FROM {quoted(stage.name)} AS s JOIN {self.database.source(self.table)} AS t "
                f"ON {self._is_same(stage)}"
            )
        for stage in moving:
            self._delete(stage)
        for stage in self.updated:
            if stage not in moving:
                self._update(stage)
        for stage in moving:
            self._insert(f"SELECT * FROM {quoted(f'{stage.name}_moved')}")
        for stage in self.inserted:
            values = []
            for place, name in zip(value_names(stage.columns), stage.columns, strict=True):
                column = self.table.column(name)
                given, default = self._new_value(place, column), column.computed_default
                values.append(given if default is None else f"coalesce({given}, {default})")
            self._insert(f"SELECT {', '.join(values)} FROM {quoted(stage.name)} AS s")
        return sum(stage.rows for stage in (*self.deleted, *self.updated, *self.inserted))

    def _delete(self, stage: _Stage) -> None:
        text = self.database.delete(self.table, stage.name, self._is_same(stage))
        self._check(stage, self.session.change(text))

    def _update(self, stage: _Stage) -> None:
        values = zip(stage.columns, value_names(stage.columns), strict=True)
        sets = ", ".join(
            f"{quoted(name)} = {self._new_value(value, self.table.column(name))}"
            for name, value in values
        )
        text = (
            f"UPDATE {self.database.source(self.table)} AS t SET {sets} "
            f"FROM {quoted(stage.name)} AS s WHERE {self._is_same(stage)}"
        )
        self._check(stage, self.session.change(text))

    def _insert(self, rows: str) -> None:
        names = ", ".join(quoted(column.name) for column in self.table.columns)
        target = f"{self.database.source(self.table)} ({names}) {self.database.insert_clause}"
        self.session.execute(f"INSERT INTO {target} {rows}")

    def _is_same(self, stage: _Stage) -> str:
        """A condition that row `t` is the one that `s` names, as it was read."""
        keys = self._keys(stage, is_new=False)
        version = self.database.version(self.table, "t")
        return " AND ".join((*keys, f"{version} = s.{quoted(VERSION)}"))

    def _keys(self, stage: _Stage, *, is_new: bool) -> list[str]:
        places = dict(zip(stage.columns, value_names(stage.columns), strict=True)) if is_new else {}
        values = [
            self._new_value(places.get(name, f"k{i}"), self.table.column(name))
            for i, name in enumerate(self.table.key)
        ]
        return [
            f"t.{quoted(name)} = {value}"
            for name, value in zip(self.table.key, values, strict=True)
        ]

    def _new_value(self, name: str, column: DatabaseColumn) -> str:
        return self.database.write_expression(column, f"s.{quoted(name)}")

    # -- rows with changed keys --------------------------------------------------------------------

    def _takes_other_keys(self, stage: _Stage) -> bool:
        """Whether a row moves to a key that another row has now, and may give up.

        Databases check keys row by row, so an UPDATE would fail.
        """
        if not {*stage.columns} & {*self.table.key}:
            return False
        to, from_ = self._keys(stage, is_new=True), self._keys(stage, is_new=False)
        met = self.session.rows(
            f"SELECT 1 FROM {quoted(stage.name)} AS s JOIN {self.database.source(self.table)} AS t "
            f"ON {' AND '.join(to)} WHERE NOT ({' AND '.join(from_)}) LIMIT 1"
        )
        if met and self.database.is_referenced(self.session, self.table):
            raise InvalidError(
                f"{self.table}: an UPDATE changes primary keys to those of other rows, and a "
                "foreign key refers to the table; use unused keys. Nothing was changed"
            )
        return bool(met)

    # -- conflict checks ---------------------------------------------------------------------------

    def _check(self, stage: _Stage, changed: int) -> None:
        if changed == stage.rows:
            return
        keys = ", ".join(quoted(name) for name in id_names(self.table)[:-1])
        twice = self.session.rows(
            f"SELECT 1 FROM {quoted(stage.name)} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"
        )
        if twice:
            raise InvalidError(f"{self.table}: a row is changed twice in one statement")
        raise ConflictError(
            f"{self.table}: only {changed} of {stage.rows} rows to change are unchanged since "
            "they were read; another transaction changed the others first. Nothing was changed: "
            "run the statement again"
        )
