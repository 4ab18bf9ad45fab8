"""Other readers and writers of the table format, behind one interface.

A judge reads and writes tables without a line of Keytide. What it cannot do it refuses: each
exception of its own becomes a `RefusedError`, whose text begins with the name of its class.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pypaimon_rust.datafusion import PaimonCatalog, SQLContext

import keytide as kt
from json_values import rows_as_text

PROJECT = Path(__file__).parents[2]
PYPAIMON_PYTHON = PROJECT / ".venv-pypaimon/bin/python"
ROW_KIND = "_row_kind"


class RefusedError(Exception):
    """A judge cannot do what was asked."""


class Condition(NamedTuple):
    """`column operator values`, with an operator of SQL; several conditions mean AND."""

    column: str
    operator: str
    values: tuple[Any, ...] = ()

    def sql(self) -> str:
        """The condition as Keytide takes it."""
        literals = [str(v) if isinstance(v, int) else f"'{v}'" for v in self.values]
        text = f"({', '.join(literals)})" if self.operator == "in" else "".join(literals)
        return f"{self.column} {self.operator} {text}".rstrip()


class Outcome(NamedTuple):
    """How something that an engine cannot do ends."""

    raised: type[Exception]
    saying: str


def refusal(saying: str) -> Outcome:
    """The judge says that it cannot."""
    return Outcome(RefusedError, saying)


def difference(saying: str = "") -> Outcome:
    """The judge does it in its own way, which is not the format's."""
    return Outcome(AssertionError, saying)


class Judge(Protocol):
    """Another reader and writer, looking at one warehouse."""

    name: str

    def create(
        self,
        table: str,
        columns: Mapping[str, str],
        primary_key: Sequence[str],
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Make a table of columns with SQL types. Raises `RefusedError`."""
        ...

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Condition] = (),
        snapshot_id: int | None = None,
        tag: str | None = None,
    ) -> pa.Table:
        """The rows of a table, one per key. Raises `RefusedError`."""
        ...

    def write(self, table: str, rows: pa.Table) -> None:
        """Append rows in one commit. Raises `RefusedError`."""
        ...


def canonical(rows: pa.Table, schema: pa.Schema) -> list[str]:
    """Rows as sorted texts in the types of `schema`, into which they must fit without loss."""
    return rows_as_text(rows.select(schema.names).cast(schema))


def assert_reads_alike(
    judge: Judge,
    table: kt.Table,
    *,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    snapshot_id: int | None = None,
    tag: str | None = None,
) -> list[str]:
    """Assert that the judge reads what Keytide reads, and return it."""
    condition = " AND ".join(term.sql() for term in where) or None
    travel: dict[str, Any] = {"snapshot_id": snapshot_id, "tag": tag}
    scan = table.scan(columns=columns, where=condition, **travel)
    theirs = judge.read(table.name, columns=columns, where=where, **travel)
    ours = canonical(scan.to_arrow(), scan.schema)
    assert_same(ours, canonical(theirs, scan.schema), judge.name)
    return ours


def assert_same(expected: list[str], found: list[str], finder: str) -> None:
    """Assert that sorted rows are equal, and name those that are not."""
    missing, surplus = Counter(expected), Counter(found)
    text = f"{finder} misses {list(missing - surplus)} and has besides {list(surplus - missing)}"
    assert found == expected, text


def expecting(outcome: Outcome | None) -> AbstractContextManager[Any]:
    """A block that must end in a known way, or simply work."""
    if outcome is None:
        return nullcontext()
    return pytest.raises(outcome.raised, match=re.escape(outcome.saying))


def write_with(judge: Judge, table: kt.Table, rows: pa.Table) -> None:
    """Have the judge append rows; it takes TIMESTAMP(0) in seconds. Raises `RefusedError`."""
    for f in table.table_schema.fields:
        if getattr(f.type, "precision", None) == 0 and f.type.sql().startswith("TIMESTAMP"):
            zone = rows.schema.field(f.name).type.tz
            seconds = rows[f.name].cast(pa.timestamp("s", zone))
            column = pa.field(f.name, seconds.type, rows.schema.field(f.name).nullable)
            rows = rows.set_column(rows.column_names.index(f.name), column, seconds)
    judge.write(table.name, rows)


@dataclass(frozen=True)
class PypaimonRust:
    """pypaimon-rust, in this process."""

    warehouse: str
    name: str = "pypaimon-rust"

    def create(
        self,
        table: str,
        columns: Mapping[str, str],
        primary_key: Sequence[str],
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """See `Judge`."""
        lines = [f"{name} {kind}" for name, kind in columns.items()]
        if primary_key:
            lines.append(f"PRIMARY KEY ({', '.join(primary_key)})")
        parts = f"PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
        settings = ", ".join(f"'{key}' = '{value}'" for key, value in (options or {}).items())
        with _refusals():
            context = SQLContext()
            context.register_catalog("judge", {"warehouse": self.warehouse})
            context.sql(f"CREATE SCHEMA IF NOT EXISTS judge.{table.split('.')[0]}")
            context.sql(
                f"CREATE TABLE judge.{table} ({', '.join(lines)}) {parts} WITH ({settings})"
            )

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Condition] = (),
        snapshot_id: int | None = None,
        tag: str | None = None,
    ) -> pa.Table:
        """See `Judge`."""
        options = {} if snapshot_id is None else {"scan.snapshot-id": str(snapshot_id)}
        options |= {} if tag is None else {"scan.tag-name": tag}
        with _refusals():
            opened = self._open(table)
            schema = _native_schema(opened)
            builder = opened.new_read_builder(options)
            if columns is not None:
                builder.with_projection(list(columns))
                schema = pa.schema([schema.field(name) for name in columns])
            if where:
                builder.with_filter(_native_predicate(where))
            batches = builder.new_read().read(builder.new_scan().plan().splits())
        return pa.Table.from_batches(batches) if batches else schema.empty_table()

    def write(self, table: str, rows: pa.Table) -> None:
        """See `Judge`."""
        if ROW_KIND in rows.column_names:
            kinds = pa.array([kind.short for kind in kt.RowKind])
            position = pc.index_in(rows[ROW_KIND], kinds).cast(pa.int8())
            rows = rows.drop_columns([ROW_KIND]).append_column("_VALUE_KIND", position)
        with _refusals():
            builder = self._open(table).new_batch_write_builder()
            writer = builder.new_write()
            try:
                for batch in rows.to_batches():
                    writer.write_arrow(batch)
                builder.new_commit().commit(writer.prepare_commit())
            finally:
                del writer  # it must die in this thread, not in that of a later collection

    def _open(self, table: str) -> Any:
        return PaimonCatalog({"warehouse": self.warehouse}).get_table(table)


class PypaimonProcess:
    """One process with pypaimon, which answers requests until it is closed."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._numbers = itertools.count()
        self._process = subprocess.Popen(
            [PYPAIMON_PYTHON, Path(__file__).with_name("pypaimon_judge.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(scratch / "stderr").open("w"),
            text=True,
        )

    def new_file(self) -> str:
        """A path for rows that travel."""
        return str(self._scratch / f"rows-{next(self._numbers)}.arrow")

    def ask(self, **request: Any) -> None:
        """Have one request carried out. Raises `RefusedError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"pypaimon died: {(self._scratch / 'stderr').read_text()}")
        refusal = json.loads(answer)["refusal"]
        if refusal is not None:
            raise RefusedError(refusal)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=10)


@dataclass(frozen=True)
class Pypaimon:
    """pypaimon, in an environment and a process of its own."""

    warehouse: str
    process: PypaimonProcess = field(repr=False)
    name: str = "pypaimon"

    def create(
        self,
        table: str,
        columns: Mapping[str, str],
        primary_key: Sequence[str],
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """See `Judge`."""
        types = {name: kt.parse_sql_type(text) for name, text in columns.items()}
        schema = pa.schema(
            [pa.field(name, kind.to_arrow(), kind.nullable) for name, kind in types.items()]
        )
        self.process.ask(
            action="create",
            warehouse=self.warehouse,
            table=table,
            rows=self._sent(schema.empty_table()),
            primary_key=list(primary_key),
            partition_by=list(partition_by),
            options=dict(options or {}),
        )

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Condition] = (),
        snapshot_id: int | None = None,
        tag: str | None = None,
    ) -> pa.Table:
        """See `Judge`."""
        path = self.process.new_file()
        self.process.ask(
            action="read",
            warehouse=self.warehouse,
            table=table,
            columns=columns,
            where=[(term.column, term.operator, [str(v) for v in term.values]) for term in where],
            snapshot_id=snapshot_id,
            tag=tag,
            rows=path,
        )
        with pa.OSFile(path) as source:
            return pa.ipc.open_file(source).read_all()

    def write(self, table: str, rows: pa.Table) -> None:
        """See `Judge`; row kinds travel in a table's own column or not at all."""
        path = self._sent(rows)
        self.process.ask(action="write", warehouse=self.warehouse, table=table, rows=path)

    def _sent(self, rows: pa.Table) -> str:
        path = self.process.new_file()
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return path


_NATIVE_METHODS = {
    "=": "equal",
    "<": "lessThan",
    "<=": "lessOrEqual",
    ">": "greaterThan",
    ">=": "greaterOrEqual",
    "in": "in",
    "is null": "isNull",
    "is not null": "isNotNull",
}


def _native_predicate(where: Sequence[Condition]) -> dict[str, Any]:
    terms = [
        {
            "method": _NATIVE_METHODS[term.operator],
            "field": term.column,
            "literals": list(term.values),
        }
        for term in where
    ]
    return terms[0] if len(terms) == 1 else {"method": "and", "children": terms}


def _native_schema(table: Any) -> pa.Schema:
    """Columns for a result without batches, which has no schema of its own."""
    return pa.schema([(f.name(), pa.null()) for f in table.schema().fields()])


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error
