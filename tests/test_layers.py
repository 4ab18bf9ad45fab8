"""The rooms of the house: imports point downwards, and the core knows and loads no engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from import_graph import ROOMS, Graph, arrows_up, circles, import_graph, modules, picture, room_of  # noqa: E402  # behind the path

MODULES = sorted(modules())


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_graph()


@cache
def source(module: str) -> ast.Module:
    path = ROOT.joinpath("src", *module.split("."))
    return ast.parse(
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    )


def imported(root: ast.AST) -> Iterator[str]:
    for node in ast.walk(root):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield node.module or ""


def test_every_module_stands_in_a_room() -> None:
    rooms = {room for row in ROOMS for room in row}
    assert {room_of(module) for module in MODULES} == rooms


def test_imports_by_name_or_by_text_point_downwards(graph: Graph) -> None:
    assert arrows_up(graph) == []


def test_imports_by_name_or_by_text_go_in_no_circle(graph: Graph) -> None:
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("keytide.store.local", "from keytide.table import scans"),
        ("keytide.store.local", "import keytide.spark.read"),
        ("keytide.table.scans", "load('keytide.lake.table')"),
        ("keytide.format.paths", "NAME = 'keytide.sql.execute'"),
    ],
)
def test_arrow_upwards_is_seen_however_it_is_written(module: str, text: str) -> None:
    graph = import_graph({module: ast.unparse(source(module)) + f"\n{text}\n"})
    assert {above for above, _ in arrows_up(graph)} == {module}


def test_circle_is_seen_through_an_import_by_text() -> None:
    below = ast.unparse(source("keytide.table.state.view"))
    graph = import_graph({"keytide.table.state.view": f"{below}\nload('keytide.table.scans')\n"})
    assert {"keytide.table.state.view", "keytide.table.scans"} <= set(circles(graph))


def test_picture_in_the_documents_is_that_of_the_code(graph: Graph) -> None:
    drawn = (ROOT / "docs/images/rooms.svg").read_text()
    assert drawn == picture(graph), "python scripts/import_graph.py --svg docs/images/rooms.svg"


@pytest.mark.parametrize("module", [m for m in MODULES if room_of(m) not in ("__init__", "cli")])
def test_own_code_is_imported_at_the_top_of_a_module(module: str) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    roots = [node for node in ast.walk(source(module)) if isinstance(node, functions)]
    found = {name for root in roots for name in imported(root)}
    assert {name for name in found if name.split(".")[0] == "keytide"} == set()


def test_modules_are_loaded_by_text_at_one_door_and_libraries_at_another() -> None:
    with_importlib = {m for m in MODULES if "importlib" in set(imported(source(m)))}
    assert with_importlib == {"keytide.lazy", "keytide.extras"}


@pytest.mark.parametrize("module", [m for m in MODULES if room_of(m) not in ("spark", "cli")])
def test_core_never_imports_pyspark(module: str) -> None:
    assert {name.split(".")[0] for name in imported(source(module))} & {"pyspark", "py4j"} == set()


def test_importing_keytide_loads_no_engine() -> None:
    code = "import keytide, sys; print(sorted({'pyspark', 'duckdb', 'pandas'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_workers_of_spark_load_neither_a_parser_nor_an_engine() -> None:
    pytest.importorskip("pyspark")
    names = ("write", "read", "change_scan", "pages", "dml_tasks")
    tasks = ("keytide.spark." + name for name in names)
    loaded = ", ".join([*tasks, "keytide.dml.keyed", "keytide.dml.appended"])
    heavy = {"sqlglot", "duckdb", "pandas", "adbc_driver_sqlite", "adbc_driver_postgresql"}
    code = f"import sys, {loaded}; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
