"""Query text: for an engine, with parameters, with measurements, and confined to the lake.

- sqlglot's generator warns about some clauses that a dialect lacks, and drops others silently. In
  both cases the engine would run a different query. So the text of a query is generated without
  losing any clause.
- Parameters are in the places of `?` and `:name`, as in Spark.
- EXPLAIN ANALYZE runs a query and reports measurements instead of its rows.
- SQL may come from somebody who must see only the lake. So it cannot read files or whatever else an
  engine can reach, unless the caller who opens the lake allows it.

>>> with_parameters("SELECT * FROM t WHERE k = ? AND v = ?", [1, "it's"])
"SELECT * FROM t WHERE k = 1 AND v = 'it''s'"
>>> with_parameters("DELETE FROM t WHERE k = :key", {"key": 7})
'DELETE FROM t WHERE k = 7'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timezone
from decimal import Decimal
from itertools import zip_longest
from numbers import Integral, Real
from typing import Any, TypeAlias

from sqlglot import ErrorLevel, TokenType, exp
from sqlglot.errors import UnsupportedError

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.base.text import counted
from keytide.catalogs.catalog import Catalog
from keytide.errors import InvalidError
from keytide.options import stored_names
from keytide.read.measurement import ScanMeasure
from keytide.sources.external_definitions import is_named_in_catalog
from keytide.sources.source import refuse_secret
from keytide.sql.cursor import Keytide, SparkText, error_at, tokenize
from keytide.store import is_inside

# -- text for an engine ----------------------------------------------------------------------------


class LostClauseError(InvalidError):
    """A clause that the engine's dialect cannot express. `node` is the part that contains it."""

    def __init__(self, message: str, node: exp.Expr) -> None:
        super().__init__(message)
        self.node = node


def engine_text(tree: exp.Expr, dialect: str) -> str:
    """The text of a query in an engine's dialect.

    Raises `LostClauseError` for a clause that the dialect cannot express.
    """
    try:
        text = _text(tree, dialect)
    except UnsupportedError as error:
        node = _smallest(tree, dialect)
        what, part = str(error).splitlines()[0].rstrip("."), _shown(node)
        place = f": {part}" if part else ""
        raise LostClauseError(f"{what} in {dialect}{place}", node) from error
    except Exception as error:  # generators fail on functions with too few arguments
        raise InvalidError(
            f"the query cannot be written for {dialect}; give all arguments of its functions: "
            f"{error}"
        ) from error
    for node, name in _optional(tree):
        if _is_lost(node, name, dialect):
            word = name.strip("_").upper().replace("_", " ")
            raise LostClauseError(f"{dialect} does not support {word} in {_shown(node)}", node)
    return text


def _text(tree: exp.Expr, dialect: str) -> str:
    known = SparkText if dialect == "spark" else dialect
    return tree.sql(dialect=known, unsupported_level=ErrorLevel.RAISE, comments=False)


def _shown(node: exp.Expr) -> str:
    return node.sql(dialect=Keytide, unsupported_level=ErrorLevel.IGNORE, comments=False)


def _smallest(tree: exp.Expr, dialect: str) -> exp.Expr:
    """The innermost part that the dialect cannot express."""
    for node in reversed(list(tree.bfs())):
        with suppress(Exception):  # a part on its own may have no text
            try:
                _text(node, dialect)
            except UnsupportedError:
                return node
    return tree


def _optional(tree: exp.Expr) -> Iterator[tuple[exp.Expr, str]]:
    """The optional arguments of query parts, with the part. Those that are never lost are skipped.

    Flags of functions and operators are set by the parser, not by the user.
    """
    for node in tree.walk():
        is_clause = not isinstance(node, exp.Func | exp.Binary | exp.Cast | exp.DataType)
        for name, value in node.args.items():
            if (
                name in _KEPT
                or node.arg_types.get(name)
                or not (value is not None and value is not False and value != [])
            ):
                continue
            if (is_clause or isinstance(value, exp.Expr)) and not _is_note(node, name, value):
                yield node, name


_KEPT = frozenset(
    ("this", "expression", "expressions", "quoted", "is_string", "table", "db", "alias", "from_",
     "with_", "where", "joins", "group", "having", "order", "limit", "offset", "distinct")
)  # fmt: skip


def _is_note(node: exp.Expr, name: str, value: Any) -> bool:
    """Whether the parser added this and not the user, or it states the default."""
    if isinstance(node, exp.Join):
        return name == "side" and value == "LEFT" and node.kind in ("SEMI", "ANTI")
    if isinstance(node, exp.Fetch):
        return name == "limit_options" and not (value.args["percent"] or value.args["with_ties"])
    if isinstance(node, exp.SHA2):
        return name == "length" and value.name in ("0", "256")
    return (type(node), name) in _NOTES


_NOTES = {
    (exp.Pivot, "columns"),
    (exp.Pivot, "pivot_column_naming"),
    (exp.ArraySort, "nulls_first"),
    (exp.Bracket, "safe"),
    (exp.Lateral, "view"),  # the spelling of an UNNEST
}


def _is_lost(node: exp.Expr, name: str, dialect: str) -> bool:
    """Whether the text of a part stays the same without this argument, or with another value."""
    value = node.args[name]
    full = _text_or_none(node, dialect)
    try:
        node.args[name] = None
        if full is None or _text_or_none(node, dialect) != full:
            return False
        if isinstance(value, str | exp.Expr):  # it may be just the default
            node.args[name] = "probe" if isinstance(value, str) else exp.column("probe")
            return _text_or_none(node, dialect) == full
        return True
    finally:
        node.args[name] = value


def _text_or_none(node: exp.Expr, dialect: str) -> str | None:
    """The text of a part, None if there is none."""
    try:
        return _text(node, dialect)
    except Exception:  # a generator can fail on a part that lacks something
        return None


# -- parameters ------------------------------------------------------------------------------------


Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
"""Values for each `?`, from left to right, or by name for each `:name`."""


def with_parameters(text: str, parameters: Parameters) -> str:
    """The text with an SQL literal in the place of each parameter.

    A value always becomes exactly one literal. Numbers, strings, booleans, bytes, dates, times and
    None are supported. Raises `InvalidError` for a place without a value, a value without a place,
    and a value of another type.
    """
    places = [*_places(text)]
    is_named = isinstance(parameters, Mapping)
    for place in places:
        if (place.name is not None) != is_named:
            kinds = ("a dict", ":name") if is_named else ("a list", "?")
            raise error_at(
                text,
                place.start,
                f"the parameters are {kinds[0]}, but the placeholders are {kinds[1]}",
            )
    values = parameters
    if isinstance(parameters, Mapping):
        names = [place.name or "" for place in places]
        for place, name in zip(places, names, strict=True):
            if name not in parameters:
                message = f"there is no parameter {name!r}; give it a value"
                raise error_at(text, place.start, message)
        unused = [name for name in parameters if name not in names]
        if unused:
            raise InvalidError(
                f"the parameter {unused[0]!r} is not used; write :{unused[0]} where its value "
                "belongs, or remove it"
            )
        values = [parameters[name] for name in names]

    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping):
        raise InvalidError(
            f"the parameters are {shown(parameters)}; give a list, or a dict by name"
        )
    if len(places) != len(values):
        raise InvalidError(
            f"the SQL text has {counted(len(places), 'placeholder')}, but "
            f"{counted(len(values), 'value')} were given; give one for each ?"
        )
    parts, end = [], 0
    for place, value in zip(places, values, strict=True):
        parts += [text[end : place.start], _literal(value, place.description)]
        end = place.end
    return "".join([*parts, text[end:]])


@dataclass(frozen=True)
class _Place:
    start: int
    end: int
    name: str | None
    description: str


def _places(text: str) -> Iterator[_Place]:
    tokens = tokenize(text)
    number = 0
    for token, following in zip_longest(tokens, tokens[1:]):
        start = int(token.start)
        if token.token_type == TokenType.PLACEHOLDER:
            number += 1
            yield _Place(start, start + 1, None, str(number))
        elif token.token_type != TokenType.COLON or following is None:
            continue
        elif int(following.start) == start + 1 and text[start + 1].isidentifier():
            number += 1
            end = int(following.end) + 1
            yield _Place(start, end, text[start + 1 : end], text[start:end])


def _literal(value: Any, place: str) -> str:
    """A value as an SQL literal."""
    value = value.item() if hasattr(value, "item") and not isinstance(value, str) else value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes | bytearray):
        return f"X'{value.hex()}'"
    if isinstance(value, Integral | Decimal | Real):
        return _number(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc).replace(tzinfo=None)
        return f"CAST('{moment.isoformat(' ')}+00:00' AS TIMESTAMP_LTZ)"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, time):
        return f"CAST('{value.isoformat()}' AS TIME)"
    raise InvalidError(
        f"parameter {place} is {shown(value)} of type {type(value).__name__}; expected a number, "
        "string, boolean, bytes, date, time or None; use a separate placeholder for each value "
        "of a list"
    )


def _number(value: Integral | Decimal | Real) -> str:
    if isinstance(value, Integral):
        shown_as = str(int(value))
    elif isinstance(value, Decimal):
        shown_as = f"{value:f}" if value.is_finite() else ""
        digits = len(shown_as.lstrip("-").replace(".", "").lstrip("0")) or 1
        scale = len(shown_as.partition(".")[2])
        if not shown_as or max(digits, scale) > _DIGITS_MAX:
            raise InvalidError(f"the decimal {value} has more than 38 digits, the maximum of SQL")
        shown_as = f"CAST('{shown_as}' AS DECIMAL({max(digits, scale)}, {scale}))"
    elif math.isfinite(value):
        shown_as = f"CAST('{float(value)!r}' AS DOUBLE)"
    else:
        name = "NaN" if math.isnan(value) else "Infinity" if float(value) > 0 else "-Infinity"
        shown_as = f"CAST('{name}' AS DOUBLE)"
    # After another minus sign it would start a comment.
    return f"({shown_as})" if shown_as.startswith("-") else shown_as


_DIGITS_MAX = 38


# -- EXPLAIN ANALYZE -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RelationAnalysis:
    """The measurements of reading one mention of a table.

    `notes` describe how it was read. `rows` were passed to the engine in `seconds`, without
    planning time. It is None if the rows existed before the query began. `reads` is how often they
    were read. A table of the lake has a `scan`.
    """

    title: str
    notes: tuple[str, ...]
    rows: int
    seconds: float | None = None
    reads: int = 1
    scan: ScanMeasure | None = None

    @property
    def summary(self) -> str:
        """The number of rows and the time."""
        parts = [counted(self.rows, "row")]
        parts += [] if self.seconds is None else [f"in {millis(self.seconds)}"]
        parts += [] if self.reads == 1 else [f"in {counted(self.reads, 'read')}"]
        return " ".join(parts)

    def lines(self) -> Iterator[str]:
        """All measurements, one per line, for display below a title."""
        yield from self.notes
        if self.scan is None:
            return
        scan, planned, there = self.scan, self.scan.planned, self.scan.there
        yield f"planned in {millis(scan.plan_seconds)}"
        yield f"buckets: {scan.buckets:,} of {there.buckets:,} read"
        yield (
            f"files: {scan.files:,} of {there.files:,} read, with "
            f"{counted(scan.file_bytes, 'byte')} and {counted(scan.stored_rows, 'stored row')}"
        )
        pruned = (f"{counted(files, 'file')} by {stage}" for stage, files in scan.pruned)
        yield f"pruned: {', '.join(pruned) or 'no file'}"
        yield f"versions: {scan.versions:,} read, {scan.merged:,} after the merge"
        if planned.asked_of_files is not None:
            yield f"conditions on files: {planned.asked_of_files}"
        if planned.asked_of_rows is not None:
            yield f"conditions on rows only: {planned.asked_of_rows}"


@dataclass(frozen=True)
class QueryAnalysis:
    """The measurements of running a query, from the first read to the last row.

    `rows` with their size `bytes` in Arrow's format, and the tables that were read.
    """

    rows: int
    bytes: int
    seconds: float
    relations: tuple[RelationAnalysis, ...]

    @property
    def summary(self) -> str:
        """The number of rows and the time."""
        return (
            f"{counted(self.rows, 'row')} of {counted(self.bytes, 'byte')} in "
            f"{millis(self.seconds)}, computed by DuckDB"
        )

    def lines(self) -> Iterator[str]:
        """The report as text. An indented line belongs to the line above it."""
        yield f"query: {self.summary}"
        if not self.relations:
            yield "  reads no table"
        for relation in self.relations:
            yield f"  {relation.title}: {relation.summary}"
            yield from (f"    {line}" for line in relation.lines())


def millis(seconds: float) -> str:
    """A readable time."""
    return f"{seconds * 1000:,.1f} ms"


# -- reads outside the lake ------------------------------------------------------------------------


WAY_OUT = "to allow it, open the lake with kt.connect(..., allow_external_files=True)"


def is_file(table: exp.Table) -> bool:
    """Whether a name in FROM can mean a file: 'a.csv', or Spark's parquet.`/path`."""
    name = table.this
    return isinstance(name, exp.Identifier) and bool(set(name.name) & _PATH_SIGNS)


_PATH_SIGNS = frozenset("./\\:*")


def outside_error(what: str, text: str, node: exp.Expr) -> InvalidError:
    """An error at the part of a query that would read outside the lake."""
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return error_at(text, min(starts, default=0), f"{what} is outside the lake; {WAY_OUT}")


def refuse_location(
    catalog: Catalog, table: str, format_: str, location: str, options: Mapping[str, str]
) -> None:
    """Refuse rows of another system that are not in the folder of the warehouse.

    Raises `InvalidError` also for an unknown format, and a location that contains a secret.
    """
    if catalog.allows_external_files:
        return
    refuse_secret(location)
    options = stored_names(options)
    if is_named_in_catalog(format_, options) or not is_inside(location, catalog.warehouse.folder):
        raise InvalidError(
            f"table {table}: the location {location!r} is outside the lake; {WAY_OUT}. Or define "
            "the table in Python, with Lake.create_external_table or Lake.adopt"
        )


def refuse_outside_functions(tree: exp.Expr, text: str) -> None:
    """Refuse functions that run code or read what their arguments name, on either engine."""
    for node in tree.find_all(exp.QueryTransform, exp.Anonymous, exp.ReadParquet, exp.ReadCSV):
        if isinstance(node, exp.QueryTransform):
            raise outside_error("the command of TRANSFORM", text, node)
        # Spark has the first one as a name, such as parquet.`/path`.
        if isinstance(node, exp.ReadParquet | exp.ReadCSV):
            raise outside_error(f"the file of {node.sql_name().lower()}()", text, node)
        if node.name.lower() in _OUTSIDE_FUNCTIONS:
            raise outside_error(f"the target of {node.name}()", text, node)


_OUTSIDE_FUNCTIONS = frozenset(
    ("reflect", "java_method", "try_reflect", "identifier",
     "arrow_scan", "arrow_scan_dumb", "pandas_scan", "python_arrow_scan", "python_map_function")
)  # fmt: skip
"""Functions that call Java classes, take table names as strings, or use memory addresses."""
