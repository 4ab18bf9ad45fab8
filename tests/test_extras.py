"""Without the library of an extra, what needs it says what to install; nothing else needs one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LIBRARIES = {
    name.partition(">")[0].partition("[")[0].replace("-", "_"): extra
    for extra, names in reversed(EXTRAS.items())
    for name in names
    if not name.startswith("keytide")
}
LIBRARIES["opentelemetry"] = LIBRARIES.pop("opentelemetry_sdk")  # is what it is imported as

# They are loaded by what has looked for the library before, the last one by Spark itself.
BEHIND_A_DOOR = (
    "keytide/spark/",
    "keytide/ui/",
    "keytide/cli/common_options.py",
    "pyspark_keytide.py",
)


def imports(node: ast.AST) -> Iterator[str]:
    """What is loaded when the module runs: not what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.module or ""
        yield from imports(child)


@pytest.mark.takes_turns
def test_no_module_imports_the_library_of_an_extra() -> None:
    found = {
        f"{path.relative_to(ROOT / 'src')}: {name}"
        for path in (ROOT / "src").rglob("*.py")
        if not str(path.relative_to(ROOT / "src")).startswith(BEHIND_A_DOOR)
        for name in imports(ast.parse(path.read_text()))
        if name.partition(".")[0] in LIBRARIES
    }
    assert found == set()


CALLS = {
    "pandas": """t.scan().to_pandas(); t.changes(0).to_pandas(); lake.sql("SELECT 1").to_pandas();
        kt.spark.session(); t.scan().to_spark(session)""",
    "pyspark": "kt.spark.session(); t.scan().to_spark(session); t.changes(0).to_spark(session)",
    "matplotlib": "t.plot()",
    "opentelemetry": "kt.telemetry.enable()",
    "datasketches": "make_sketches()",
    "adbc_driver_sqlite": "lake.attach('a', folder + '/a.sqlite')",
    "adbc_driver_postgresql": "lake.attach('a', 'postgresql://localhost/x')",
    "confluent_kafka": """t.kafka_lag("kafka://localhost/t");
        lake.ingest("x", "kafka://localhost/t", format="debezium-json")""",
    "deltalake": "of_others('delta', folder)",
    "pyiceberg": "of_others('iceberg', folder + '/x.metadata.json')",
    "boto3": "kt.connect('glue://')",
    "pymetastore": "kt.connect('thrift://h')",
    "starlette": "show_lake()",
    "uvicorn": "show_lake()",
    "jinja2": "show_lake()",
    "adbc_driver_manager": "lake.attach('a', 'postgresql://localhost/x')",
}
SCRIPT = """
import sqlite3, sys
from importlib.abc import MetaPathFinder


class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")


sys.meta_path.insert(0, Hidden())
import keytide as kt, pyarrow as pa

folder = sys.argv[1]
lake = kt.connect(folder)
t = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
t.write([{{"k": 1}}])


session = type("SparkSession", (), {{"__module__": "pyspark.sql"}})()


with sqlite3.connect(folder + "/a.sqlite") as database:
    database.execute("CREATE TABLE a (k INTEGER PRIMARY KEY)")


def of_others(kind, location):
    from importlib import import_module

    from keytide.sources.source import Place
    from keytide.store import LocalStore

    source = import_module("keytide.sources." + kind)
    source.open_source(Place(location, {{}}, LocalStore(folder))).pin()


def make_sketches():
    columns = pa.schema([("k", pa.int64()), ("v", pa.binary())])
    options = {{"merge-engine": "aggregation", "fields.v.aggregate-function": "hll_sketch"}}
    lake.create_table("s", columns, ["k"], options=options).write([{{"k": 1, "v": b"x"}}])


def show_lake():
    from keytide.cli.sql_and_ui import ui

    ui(folder)


for call in {calls!r}:
    try:
        eval(call)
    except kt.KeytideError as error:
        print(type(error).__name__, error)
    else:
        print("nothing", call)
"""


def test_calls_are_known_for_every_library() -> None:
    assert set(CALLS) == set(LIBRARIES)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("library", CALLS)
def test_call_without_its_library_says_what_to_install(library: str, tmp_path: Path) -> None:
    calls = [call.strip() for call in CALLS[library].split(";")]
    script = SCRIPT.format(library=library, calls=calls)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    said = done.stdout.splitlines()
    assert len(said) == len(calls), done.stderr
    for line in said:
        assert line.startswith("SetupError "), line
        assert library in line
        assert "install it with: pip install 'keytide[" in line
