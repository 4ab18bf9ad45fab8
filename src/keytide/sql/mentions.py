"""Finds the tables in the tree of a query, and the names that its WITH defines."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from keytide.dml.attach import AttachedCatalog
from keytide.format.branch import BRANCH_MARK, split_branch
from keytide.sql.cursor import Keytide, error_at
from keytide.sql.names import in_own_spelling

__all__ = ["lake_name", "name_of", "prepare", "split_system_name", "start_of", "table_nodes"]


def prepare(tree: exp.Query) -> None:
    """Normalize the names of results and of WITH for the following steps."""
    _name_results(tree)
    _spell_local_names(tree)


def table_nodes(tree: exp.Expr, text: str) -> tuple[list[exp.Table], list[exp.Table]]:
    """The nodes for tables, and for names of WITH. Raises `InvalidError` for an invalid query."""
    names: list[exp.Table] = []
    local: list[exp.Table] = []
    try:
        scopes = traverse_scope(tree)
    except SqlglotError as error:  # what parses is not yet a query: `(SELECT 1) AS x UNION ...`
        message = f"this is not a valid query ({error})"
        raise error_at(text, 0, message) from error
    # A table that is joined to VALUES occurs in the scopes of both.
    mentions = {id(source): (scope, source) for scope in scopes for _, source in scope.references}
    for scope, source in mentions.values():
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            (local if _is_local_name(scope, source) else names).append(source)
    return names, local


def name_of(node: exp.Table) -> str:
    """The name of a table as a query writes it."""
    return ".".join(part.name for part in node.parts)


def split_system_name(name: str) -> tuple[str, str | None]:
    """Split `db.t$files` into `db.t` and `files`. A branch stays: `db.t$branch_b`, `files`."""
    table, branch = split_branch(name)
    table, _, system = table.partition("$")
    if branch is not None:
        branch, _, system = branch.partition("$")
        table = f"{table}{BRANCH_MARK}{branch}"
    return table, system or None


def lake_name(node: exp.Table, catalog: AttachedCatalog) -> tuple[str, str | None]:
    """The table of a node, and its system table if it names one."""
    return split_system_name(in_own_spelling(catalog, name_of(node)))


def start_of(node: exp.Table) -> int:
    """The position of a table name in the text."""
    return int(node.this.meta["start"])


def _spell_local_names(tree: exp.Expr) -> None:
    """Write names of WITH as in their definition: `FROM T` can also mean `WITH t`."""
    for given in tree.find_all(exp.With):
        spelled = {cte.alias.lower(): cte.alias for cte in given.expressions}
        for node in given.parent.find_all(exp.Table) if given.parent is not None else ():
            name = node.this
            if not node.db and isinstance(name, exp.Identifier):
                name.set("this", spelled.get(name.name.lower(), name.name))


def _is_local_name(scope: Scope, node: exp.Table) -> bool:
    return not node.db and isinstance(scope.sources.get(node.alias_or_name), Scope)


_NAMED = (exp.Alias, exp.Aliases, exp.Column, exp.Dot, exp.Star)


def _name_results(tree: exp.Query) -> None:
    """Name results after their expressions, so that engines do not invent different names."""
    select = tree.find(exp.Select)
    for node in list(select.expressions) if select is not None and tree is select else ():
        is_named = isinstance(node, exp.Subquery) and node.alias
        if not is_named and not isinstance(node, _NAMED):
            node.replace(exp.alias_(node.copy(), node.sql(dialect=Keytide), quoted=True))
