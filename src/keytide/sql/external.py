"""Protection against SQL that reads outside the lake: files, and whatever an engine can reach.

SQL may come from somebody who must see only the lake. So it cannot read anything else, unless the
caller who opens the lake allows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from keytide.catalogs.catalog import Catalog
from keytide.definition.external import refuse_secret
from keytide.errors import InvalidError
from keytide.options import stored_names
from keytide.sources.definition import is_named_in_catalog
from keytide.sql.cursor import error_at
from keytide.store import is_inside

__all__ = ["WAY_OUT", "is_file", "refuse_location", "refuse_reaching_out", "refused"]

WAY_OUT = "to allow it, open the lake with kt.connect(..., allow_external_files=True)"


def is_file(table: exp.Table) -> bool:
    """Whether a name in FROM can mean a file: 'a.csv', or Spark's parquet.`/path`."""
    name = table.this
    return isinstance(name, exp.Identifier) and bool(set(name.name) & _PATH_SIGNS)


_PATH_SIGNS = frozenset("./\\:*")


def refused(what: str, text: str, node: exp.Expr) -> InvalidError:
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


def refuse_reaching_out(tree: exp.Expr, text: str) -> None:
    """Refuse functions that run code or read what their arguments name, on either engine."""
    for node in tree.find_all(exp.QueryTransform, exp.Anonymous, exp.ReadParquet, exp.ReadCSV):
        if isinstance(node, exp.QueryTransform):
            raise refused("the command of TRANSFORM", text, node)
        # Spark has the first one as a name, such as parquet.`/path`.
        if isinstance(node, exp.ReadParquet | exp.ReadCSV):
            raise refused(f"the file of {node.sql_name().lower()}()", text, node)
        if node.name.lower() in _REACHING_OUT:
            raise refused(f"the target of {node.name}()", text, node)


_REACHING_OUT = frozenset(
    ("reflect", "java_method", "try_reflect", "identifier",
     "arrow_scan", "arrow_scan_dumb", "pandas_scan", "python_arrow_scan", "python_map_function")
)  # fmt: skip
"""Functions that call Java classes, take table names as strings, or use memory addresses."""
