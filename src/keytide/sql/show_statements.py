"""SHOW, DESCRIBE and EXPLAIN: definitions as rows and as text, and the definition of views.

The query of a view is tested before it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from keytide.base.text import counted, moment_text
from keytide.catalogs.system_tables import system_table
from keytide.catalogs.warehouse import StoredView
from keytide.definition.kind import is_external
from keytide.dml.attachments import AttachedCatalog, attached_tables, entry_of, table_of, target_of
from keytide.dml.spi import ConnectorSession
from keytide.errors import AlreadyExistsError, InvalidError, NotFoundError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.options.keys import key_of
from keytide.sources.source import format_of, given_options, is_read_on_demand, location_of
from keytide.sql.from_clause import prepare, with_views
from keytide.sql.grammar import parse_query
from keytide.sql.query_engine import Engine
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.result import LocalResult, Result
from keytide.sql.statements import CreateView, Show
from keytide.types import quoted, type_from_arrow

# -- SHOW, DESCRIBE and EXPLAIN --------------------------------------------------------------------


def show(catalog: AttachedCatalog, statement: Show) -> pa.Table:
    """The rows of a SHOW statement.

    Raises `NotFoundError` for an unknown table, and if the warehouse folder does not exist.
    """
    if statement.what in ("DATABASES", "TABLES", "VIEWS"):
        catalog.check_exists()
    if statement.what == "DATABASES":
        names = _like(statement.like, catalog.databases())
        return pa.table({"database": pa.array(names, pa.string())})
    if statement.what == "CURRENT DATABASE":
        return pa.table({"database": [catalog.database]})
    if statement.what == "TABLES":
        return _tables(catalog, statement)
    if statement.what == "VIEWS":
        chosen = statement.name or catalog.chosen_database
        return _names_table(
            "view", catalog.views(chosen and catalog.database_of(chosen)), statement
        )
    if statement.what == "COLUMNS":
        return describe(catalog, statement.name or "", extended=False)
    if statement.what in ("PARTITIONS", "TAGS", "BRANCHES"):
        return system_table(table_of(catalog, statement.name or ""), statement.what.lower())
    if statement.what in ("CREATE VIEW", "CREATE TABLE"):
        view = catalog.find_view(statement.name or "")
        if view is not None and catalog.find(statement.name or "") is None:
            return pa.table({"create_view": [view_statement(view)]})
        if statement.what == "CREATE VIEW":
            raise NotFoundError(f"view {statement.name} does not exist in {catalog.uri}")
    table = entry_of(catalog, statement.name or "")
    if statement.what == "CREATE TABLE":
        return pa.table({"create_table": [create_statement(table.schema, table.name)]})
    if statement.what == "TBLPROPERTIES":
        options = _options(table.schema)
        return pa.table(
            {
                "key": pa.array(options, pa.string()),
                "value": pa.array(options.values(), pa.string()),
            }
        )
    raise AssertionError(statement.what)


def describe(catalog: AttachedCatalog, name: str, *, extended: bool) -> pa.Table:
    """The columns of a table. `extended` adds its options, its kind and its location.

    For an attached table it adds nothing. Raises `NotFoundError` for an unknown table.
    """
    target = target_of(catalog, name)
    if target is not None:
        connector, handle = target
        attached = connector.metadata.get_table_schema(ConnectorSession(), handle)
        return description_rows(
            [
                (
                    column.name,
                    type_from_arrow(column.type, column.nullable).sql(),
                    "primary key" if column.name in attached.primary_key else "",
                    None,
                )
                for column in attached.columns
            ]
        )
    table = entry_of(catalog, name)
    schema = table.schema
    rows = [(f.name, f.type.sql(), _role(schema, f.name), f.description) for f in schema.fields]
    if extended:
        about = {
            "table": table.name,
            "comment": schema.comment,
            "primary key": ", ".join(schema.primary_keys),
            "partitioned by": ", ".join(schema.partition_keys),
            "schema": f"{schema.id} of {moment_text(schema.time_millis)}",
        }
        snapshot = None if is_external(schema) else table.metadata.latest_snapshot()
        if snapshot is not None:
            about["snapshot"] = f"{snapshot.id} of {moment_text(snapshot.time_millis)}"
            about["rows stored"] = str(snapshot.total_record_count)
        rows += [(key, value, "option", None) for key, value in _options(schema).items()]
        rows += [(key, value, "table", None) for key, value in about.items() if value]
        place = location_of(schema) if is_external(schema) else table.uri
        rows.append(("location", place, "table", schema.comment))
    return description_rows(rows)


def describe_database(catalog: AttachedCatalog, name: str) -> pa.Table:
    """The properties of a database. Raises `NotFoundError` for an unknown one."""
    database = catalog.database_of(name)
    tables = catalog.tables(database)
    about = {
        "database": database,
        "comment": catalog.warehouse.comment_on(database),
        "warehouse": catalog.uri,
        "tables": str(len(tables)),
    }
    return pa.table(
        {"name": pa.array(about, pa.string()), "value": pa.array(about.values(), pa.string())}
    )


def description_rows(rows: Sequence[tuple[str | None, ...]]) -> pa.Table:
    """Rows in the format of DESCRIBE."""
    names = ("name", "type", "role", "comment")
    columns = zip(*rows, strict=True)
    return pa.table({n: pa.array(c, pa.string()) for n, c in zip(names, columns, strict=True)})


def create_statement(schema: TableSchema, name: str) -> str:
    """The CREATE TABLE statement that recreates the table, or the external table's definition."""
    outside = is_external(schema)
    made = {} if outside else TableOptions.parse(schema.options).generation_texts
    lines = []
    for field in () if outside and is_read_on_demand(schema) else schema.fields:
        line = replace(field, default_value=None).sql()
        if field.name in made:
            line += f" GENERATED ALWAYS AS ({made[field.name]})"
        if field.default_value is not None:
            line += f" DEFAULT {_text(field.default_value)}"
        lines.append(line)
    if schema.primary_keys:
        key = ", ".join(map(quoted, schema.primary_keys))
        lines.append(f"PRIMARY KEY ({key}) NOT ENFORCED")
    what = "EXTERNAL TABLE" if outside else "TABLE"
    text = f"CREATE {what} {'.'.join(map(quoted, name.split('.')))} (\n  "
    text += ",\n  ".join(lines) + "\n)"
    if outside:
        text += f" USING {format_of(schema)} LOCATION {_text(location_of(schema))}"
    if schema.comment:
        text += f" COMMENT {_text(schema.comment)}"
    if schema.partition_keys:
        text += f" PARTITIONED BY ({', '.join(map(quoted, schema.partition_keys))})"
    options = given_options(schema) if outside else dict(schema.options)
    for column in made:
        options.pop(key_of(keys.GENERATED, column))
    if options:
        pairs = (f"  {_text(k)} = {_text(v)}" for k, v in sorted(options.items()))
        text += " WITH (\n" + ",\n".join(pairs) + "\n)"
    return text


def view_statement(view: StoredView) -> str:
    """The CREATE VIEW statement. Names without a database use the database it was created in."""
    text = f"CREATE VIEW {'.'.join(map(quoted, view.name.split('.', 1)))}"
    if view.columns:
        text += f" ({', '.join(map(quoted, view.columns))})"
    if view.comment:
        text += f" COMMENT {_text(view.comment)}"
    return f"{text} AS {view.query}"


def explain(bound: BoundQuery) -> Result:
    """What is read from each table of a query, without reading it."""
    lines = [line for relation in bound.relations for line in relation.plan_lines()]
    return plan_rows(lines or ["reads no table"])


def plan_rows(lines: Iterable[str]) -> Result:
    """What EXPLAIN gives: a row for each line."""
    return LocalResult(pa.table({"plan": pa.array(lines, pa.string())}))


def _tables(catalog: AttachedCatalog, statement: Show) -> pa.Table:
    """The tables of the named database, otherwise of the current one, otherwise of all."""
    chosen = statement.name or catalog.chosen_database
    names = catalog.tables(chosen)
    if statement.name is not None and not names:
        start = f"{statement.name}.".lower()
        names = [name for name in catalog.tables() if name.lower().startswith(start)]
        names += attached_tables(catalog, statement.name)
    return _names_table("table", names, statement)


def _names_table(what: str, names: Sequence[str], statement: Show) -> pa.Table:
    """Full names that match LIKE, with a separate column for the database."""
    split = [name.split(".", 1) for name in names]
    fitting = {*_like(statement.like, (name for _, name in split))}
    split = [pair for pair in split if pair[1] in fitting]
    return pa.table(
        {
            "database": pa.array([database for database, _ in split], pa.string()),
            what: pa.array([name for _, name in split], pa.string()),
        }
    )


def _like(pattern: str | None, names: Iterable[str]) -> list[str]:
    """The names that match the pattern of SHOW ... LIKE, case-insensitively."""
    if pattern is None:
        return [*names]
    text = re.escape(pattern).replace("%", ".*").replace(r"\*", ".*")
    return [name for name in names if re.fullmatch(text, name, re.IGNORECASE)]


def _options(schema: TableSchema) -> Mapping[str, str]:
    """The options to show."""
    if not is_external(schema):
        return schema.options
    return {keys.EXTERNAL_FORMAT: format_of(schema), **given_options(schema)}


def _role(schema: TableSchema, name: str) -> str:
    roles = []
    if name in schema.primary_keys:
        roles.append("primary key")
    if is_external(schema):
        for key, role in _UPSERT_ROLES.items():
            if name in [each.strip() for each in schema.options.get(key, "").split(",")]:
                roles.append(role)
    if name in schema.partition_keys:
        roles.append("partition")
    if not is_external(schema):
        text = schema.options.get(key_of(keys.GENERATED, name))
        roles += [] if text is None else [f"generated as ({text})"]
    return ", ".join(roles)


_UPSERT_ROLES = {keys.WATERMARK_KEY: "watermark key", keys.TOMBSTONE_KEY: "tombstone key"}


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# -- views -----------------------------------------------------------------------------------------


def create_view(catalog: AttachedCatalog, engine: Engine, statement: CreateView) -> None:
    """Store a view if its query can run. Raises as `Lake.create_view`, and as `bind`."""
    name = statement.name if "." in statement.name else f"{catalog.database}.{statement.name}"
    view = StoredView(name, statement.text, catalog.database, statement.columns, statement.comment)

    found = _columns(catalog, engine, statement.text)
    names = view.columns or tuple(found.names)
    if len(names) != len(found.names):
        raise InvalidError(
            f"view {view.name} names {counted(len(names), 'column')}, but its query returns "
            f"{len(found.names)}: {', '.join(found.names)}"
        )
    tree = statement.query.tree
    own = tree.named_selects if isinstance(tree, exp.Query) else []
    lower = [each.lower() for each in view.columns or own if each != "*"]
    twice = next((each for each in view.columns or own if lower.count(each.lower()) > 1), None)
    if twice is not None:
        raise InvalidError(
            f"view {view.name}: two columns are named {twice!r} (names are case-insensitive); "
            "rename one with AS, or list the columns after the name of the view"
        )
    known = catalog.find_view(view.name) if statement.replaces else None
    if known is not None:
        # Refuse a view that would read itself.
        stored = parse_query(view.query)
        read = stored.tree
        if not isinstance(read, exp.Query):
            read = exp.select("*").from_(read)
        prepare(read)
        with_views(read, stored, catalog.pinned(), (replace(view, name=known.name),))
    if not catalog.create_view(view, replace=statement.replaces) and not statement.exists_ok:
        raise AlreadyExistsError(
            f"view {name} already exists in {catalog.uri}; use CREATE OR REPLACE VIEW to replace it"
        )


def _columns(catalog: AttachedCatalog, engine: Engine, text: str) -> pa.Schema:
    query = parse_query(f"SELECT * FROM ({text}\n) AS of_view LIMIT 0")
    return engine.schema(engine.rows(bind(query, catalog)))


def view_description(
    catalog: AttachedCatalog, engine: Engine, view: StoredView, *, extended: bool
) -> pa.Table:
    """The columns of a view with their types. `extended` adds its query and its comment."""
    name = ".".join(map(quoted, view.name.split(".", 1)))
    found = _columns(catalog, engine, f"SELECT * FROM {name}")
    rows: list[tuple[str | None, ...]] = [
        (c.name, type_from_arrow(c.type, c.nullable).sql(), "", None) for c in found
    ]
    if extended:
        rows += [("view", view.name, "view", view.comment), ("query", view.query, "view", None)]
        rows.append(("database", view.database, "view", None))
    return description_rows(rows)
