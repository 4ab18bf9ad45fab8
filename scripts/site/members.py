"""Shows methods of `Table` that are derived from functions, and dataclasses, in the API reference.

`create_tag = member(create_tag)` looks like an attribute in the source. Its signature and docstring
are those of the function, without the table argument. `keytide.base.dataclass` is shown like the
decorator of the standard library.
"""

from __future__ import annotations

from typing import Any

import griffe

MAKERS = ("member", "member_with_result")


DATACLASS = "keytide.base.dataclass.dataclass"


class Dataclasses(griffe.Extension):
    """Lets classes with Keytide's own decorator be dataclasses."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Name the decorator of the standard library in a module that imports Keytide's."""
        found = mod.members.get("dataclass")
        if isinstance(found, griffe.Alias) and found.target_path == DATACLASS:
            found.target_path = "dataclasses.dataclass"


class VerbsAsMethods(griffe.Extension):
    """Replaces each attribute that is derived from a function with that function."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Process the one class that has such attributes."""
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
        # The function has the same name as the method, which the module imports.
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
