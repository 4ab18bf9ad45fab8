"""The layers: imports point downwards, and the core neither knows nor loads an engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# From the bottom up; a layer may import itself and those before it.
LAYERS = [
    {"errors"},
    {"arguments", "process"},
    {"types", "row_kind", "options", "scratch"},
    {"store"},
    {"format"},
    {"merge"},
    {"table"},
    {"cdc"},
    {"sql"},
    {"spark"},
    {"__init__"},  # the public surface gathers what is below it
    {"cli"},
]
MAY_USE_SPARK = ("keytide.spark", "keytide.cli")
MODULES = sorted(
    path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    for path in (SOURCE / "keytide").rglob("*.py")
)


def layer_of(module: str) -> int:
    """The height of a module; a name that stands in no layer counts as the highest."""
    name = noun_of(module)
    return next((height for height, names in enumerate(LAYERS) if name in names), len(LAYERS))


def noun_of(module: str) -> str:
    """`store` of `keytide.store.local`; the package itself is its `__init__`."""
    return (*module.split("."), "__init__")[1]


def imported_modules(module: str, *, inside_functions_only: bool = False) -> Iterator[str]:
    """Every module that the source of `module` imports, anywhere in it."""
    tree = ast.parse((SOURCE / (module.replace(".", "/") + ".py")).read_text())
    roots: list[ast.AST] = [tree]
    if inside_functions_only:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        roots = [node for node in ast.walk(tree) if isinstance(node, functions)]
    for node in (node for root in roots for node in ast.walk(root)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(module, node)
            yield from (module_behind(base, alias.name) for alias in node.names)


def absolute_base(module: str, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def module_behind(base: str, name: str) -> str:
    """Tell `from keytide import types`, a module, from `from keytide import connect`, a member."""
    path = SOURCE / "keytide" / name
    is_module = path.is_dir() or path.with_suffix(".py").is_file()
    return f"keytide.{name}" if base == "keytide" and is_module else base


def own_imports(module: str, *, inside_functions_only: bool = False) -> set[str]:
    imported = imported_modules(module, inside_functions_only=inside_functions_only)
    return {name for name in imported if name.split(".")[0] == "keytide"}


def test_every_module_stands_in_a_layer() -> None:
    assert {noun_of(module) for module in MODULES} - set().union(*LAYERS) == set()


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module: str) -> None:
    upward = {name for name in own_imports(module) if layer_of(name) > layer_of(module)}
    assert upward == set()


@pytest.mark.parametrize("module", [m for m in MODULES if layer_of(m) < layer_of("keytide")])
def test_own_code_is_imported_at_the_top_of_a_module(module: str) -> None:
    """An import inside a function hides a cycle; only the faces above load on demand."""
    assert own_imports(module, inside_functions_only=True) == set()


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith(MAY_USE_SPARK)])
def test_core_never_imports_pyspark(module: str) -> None:
    assert {name.split(".")[0] for name in imported_modules(module)} & {"pyspark", "py4j"} == set()


@pytest.mark.parametrize("engine", ["pyspark", "duckdb", "pandas"])
def test_importing_keytide_does_not_load_engine(engine: str) -> None:
    code = f"import keytide, sys; print(sorted(n for n in sys.modules if n == {engine!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
