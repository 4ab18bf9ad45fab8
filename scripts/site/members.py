"""Methods of `Table` that are made of verbs, as the reference of the API shows them.

`create_tag = member(create_tag)` is an attribute to whoever only reads the source. Its signature
and its docstring are those of the verb, without the table.
"""

from __future__ import annotations

from typing import Any

import griffe

MAKERS = ("member", "member_giving")


class VerbsAsMethods(griffe.Extension):
    """Puts a function in the place of each attribute that is made of a verb."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Look at the one class that has such attributes."""
        if pkg.name != "keytide":
            return
        table = pkg["lake.table.Table"]
        for name, attribute in list(table.members.items()):
            verb = _verb(attribute, table.module)
            if verb is not None:
                table.set_member(name, _method(name, attribute, verb))


def _verb(attribute: Any, module: griffe.Module) -> griffe.Function | None:
    value = getattr(attribute, "value", None)
    if not isinstance(value, griffe.ExprCall) or str(value.function) not in MAKERS:
        return None
    path = value.arguments[0].canonical_path  # type: ignore[union-attr]  # a name
    if path == attribute.path:
        # The verb has the name of the method: it is what the module imports.
        path = module[attribute.name].target_path
    found = module.package.modules_collection[path]
    return found.final_target if found.is_alias else found


def _method(name: str, attribute: Any, verb: griffe.Function) -> griffe.Function:
    return griffe.Function(
        name,
        parameters=griffe.Parameters(
            griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword),
            *list(verb.parameters)[1:],
        ),
        returns=verb.returns,
        docstring=verb.docstring,
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
    )
