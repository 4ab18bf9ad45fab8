"""The rooms of the house: imports point downwards, and the core knows and loads no engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
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
    package = path / "__init__.py"
    return ast.parse((package if package.exists() else path.with_suffix(".py")).read_text())


def statements(root: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, which are far fewer than its expressions."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(root, block, ()):
            yield node
            yield from statements(node)


def imported(root: ast.AST) -> Iterator[str]:
    for node in statements(root):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield node.module or ""


@cache
def imports_of(module: str) -> frozenset[str]:
    """All that a module imports, wherever that is written."""
    return frozenset(imported(source(module)))


def test_every_module_stands_in_a_room() -> None:
    rooms = {room for row in ROOMS for room in row}
    assert {room_of(module) for module in MODULES} == rooms


def test_imports_wherever_they_are_written_point_downwards(graph: Graph) -> None:
    assert arrows_up(graph) == []


def test_imports_wherever_they_are_written_go_in_no_circle(graph: Graph) -> None:
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("keytide.store.local", "from keytide.read import scan"),
        ("keytide.store.local", "import keytide.spark.read_plans"),
        ("keytide.read.requests", "def f():\n    from keytide.lake import table"),
        ("keytide.format.paths", "NAME = 'keytide.sql.execution'"),
    ],
)
def test_arrow_upwards_is_seen_however_it_is_written(module: str, text: str) -> None:
    graph = import_graph({module: ast.unparse(source(module)) + f"\n{text}\n"})
    assert {above for above, _ in arrows_up(graph)} == {module}


def test_circle_is_seen_through_an_import_in_a_function() -> None:
    below = ast.unparse(source("keytide.snapshot.state"))
    local = "def f():\n    from keytide.read.requests import get_row"
    graph = import_graph({"keytide.snapshot.state": f"{below}\n{local}\n"})
    assert {"keytide.snapshot.state", "keytide.read.requests"} <= set(circles(graph))


def test_picture_in_the_documents_is_that_of_the_code(graph: Graph) -> None:
    drawn = (ROOT / "docs/images/rooms.svg").read_text()
    assert drawn == picture(graph), "python scripts/import_graph.py --svg docs/images/rooms.svg"


HEAVY = {"sqlglot", "duckdb", "pandas", "pyspark", "adbc_driver_manager", "matplotlib"}
"""What takes long to load, or comes with an extra."""


def imported_in_functions(module: str) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    roots = [node for node in statements(source(module)) if isinstance(node, functions)]
    return {name for root in roots for name in imported(root) if name.split(".")[0] == "keytide"}


def libraries(module: str, graph: Graph) -> set[str]:
    """What a module imports of others, and what the modules do that it imports."""
    seen: set[str] = set()
    waiting = {module}
    while waiting:
        seen |= waiting
        waiting = {name for known in waiting for name in graph[known]} - seen
    return {name.split(".")[0] for known in seen for name in imports_of(known)}


@pytest.mark.parametrize("module", [m for m in MODULES if room_of(m) != "cli"])
def test_own_code_is_imported_in_a_function_only_where_it_is_heavy(
    module: str, graph: Graph
) -> None:
    found = imported_in_functions(module)
    assert {name for name in found if not libraries(name, graph) & HEAVY} == set()
    assert not found or room_of(module) in ("lake", "__init__")


def test_modules_are_loaded_by_text_at_the_doors_of_users_and_extras_alone() -> None:
    with_importlib = {m for m in MODULES if "importlib" in imports_of(m)}
    doors = {"keytide", "keytide.base.process", "keytide.cli.main", "keytide.spark"}
    assert with_importlib == doors


@pytest.mark.parametrize("module", [m for m in MODULES if room_of(m) not in ("spark", "cli")])
def test_core_never_imports_pyspark(module: str) -> None:
    assert {name.split(".")[0] for name in imports_of(module)} & {"pyspark", "py4j"} == set()


LOADED = {
    # What a program has loaded by then, and what it has not.
    "import keytide as kt; kt.KeytideError": {
        "polars", "pyarrow", "numpy", "obstore", "fastavro", "thrift", "keytide.lake",
    },
    "import keytide as kt; import sys; sys.path.append('tests/support'); import first_table": {
        "pyarrow.dataset", "rich", "typer", "keytide.cdc", "keytide.spark", "keytide.duckdb",
    },
}  # fmt: skip


@pytest.mark.parametrize("code", LOADED)
def test_what_nobody_asked_for_is_not_loaded(code: str) -> None:
    # pyarrow loads pandas, where it is installed, to make a scalar.
    heavy = sorted({*LOADED[code], *HEAVY} - ({"pandas"} if "first_table" in code else set()))
    asked = f"{code}; import sys; print([name for name in {heavy} if name in sys.modules])"
    command = [sys.executable, "-c", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_workers_of_spark_load_neither_a_parser_nor_an_engine() -> None:
    pytest.importorskip("pyspark")
    names = ("dataframe_writes", "read_plans", "dml_tasks")
    tasks = ("keytide.spark." + name for name in names)
    loaded = ", ".join([*tasks, "keytide.dml.keyed_table", "keytide.dml.append_table"])
    heavy = {"sqlglot", "duckdb", "pandas", "adbc_driver_sqlite", "adbc_driver_postgresql"}
    code = f"import sys, {loaded}; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["data_source", "read_plans", "dataframe_writes", "runner"])
def test_workers_of_spark_load_nothing_that_only_sessions_need(module: str) -> None:
    pytest.importorskip("pyspark")
    rooms = ("dml", "sources", "sql", "feeds", "cdc", "lake", "duckdb", "pinot", "cli")
    unwanted = {f"keytide.{room}" for room in rooms}
    unwanted |= {f"keytide.spark.{name}" for name in ("sessions", "ingest", "session_sql")}
    code = f"import sys, keytide.spark.{module}; print(sorted({unwanted} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    """pytest imports them by their names, and refuses the second one of a name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, count in names.items() if count > 1] == ["conftest.py"]
