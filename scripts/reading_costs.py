"""Counts what somebody meets who reads the source: modules, functions, names and ways.

    python scripts/reading_costs.py            counts over all of the source
    python scripts/reading_costs.py --ways     also follows one small example of each operation
    python scripts/reading_costs.py --names    also names the modules of each way

A way is everything that runs in the second call of an operation: the modules that a reader opens,
the functions that he reads, and his jumps, each from one function to another in a different module.
`data_ways.py` follows the data through the same operations.

What counts:

- The length of a function is that of its body without its docstring.
- A helper is used once if its private name occurs once in its module besides its definition.
- A lone module has one importer, which is in the same package.
- The vocabulary that every module uses is not on a way.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import statistics
import sys
import tempfile
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from data_ways import kt  # work for threads runs immediately there, so it is followed as well

SOURCE = Path(__file__).parents[1] / "src"
VOCABULARY = {"base", "errors", "options", "types"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True)
class Counts:
    """What is met in the whole source. Lines of code are without docstrings and comments."""

    modules: int
    code_lines: int
    import_lines: int
    lines_of_a_module: float
    """The median."""
    functions: int
    lines_of_a_function: float
    """The median."""
    longest_function: int
    one_liners_percent: int
    used_once_percent: int
    lone_modules: int
    names_in_two_packages: int


@dataclass(frozen=True)
class Module:
    """The text of a module and what it contains."""

    name: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that contains it."""
        return self.name.rpartition(".")[0]

    def nodes(self, kind: Any) -> Iterator[Any]:
        """All nodes of a kind."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kind))

    def functions(self) -> list[int]:
        """The lengths of all functions."""
        return [_length(node) for node in self.nodes(Function)]

    def code_lines(self) -> int:
        """The number of lines that are code."""
        lines = self.text.splitlines()
        other = {at for at, line in enumerate(lines, 1) if not line.strip()}
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
                other.add(token.start[0])
        for node in self.nodes(Documented):
            if ast.get_docstring(node, clean=False) is not None:
                other.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        return len(lines) - len(other)

    def import_lines(self) -> int:
        """The number of lines of the imports at the top."""
        imports = (node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom))
        return sum((node.end_lineno or 0) - node.lineno + 1 for node in imports)

    def helpers(self) -> list[int]:
        """How often each private function is used in the module."""
        used = Counter(node.id for node in self.nodes(ast.Name))
        used += Counter(node.attr for node in self.nodes(ast.Attribute))
        names = [node.name for node in self.nodes(Function)]
        return [used[name] for name in names if name.startswith("_") and name[:2] != "__"]

    def imported(self, known: Mapping[str, Module]) -> set[str]:
        """The modules of the package that it imports from."""
        return {
            whole if (whole := f"{node.module}.{alias.name}") in known else str(node.module)
            for node in self.nodes(ast.ImportFrom)
            for alias in node.names
        } & known.keys()


def modules(source: Path = SOURCE) -> dict[str, Module]:
    """All modules of the package by name."""
    found = {}
    for path in sorted((source / "keytide").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found[name] = Module(name, text, ast.parse(text))
    return found


def counts(found: Mapping[str, Module]) -> Counts:
    """The counts over all modules."""
    each = list(found.values())
    functions = [length for module in each for length in module.functions()]
    importers: dict[str, set[str]] = defaultdict(set)
    packages: dict[str, set[str]] = defaultdict(set)
    for module in each:
        packages[module.name.rpartition(".")[2]].add(module.package)
        for name in module.imported(found):
            importers[name].add(module.name)
    lone = [
        name
        for name, users in importers.items()
        if len(users) == 1 and found[min(users)].package == found[name].package
    ]
    return Counts(
        modules=len(each),
        code_lines=sum(module.code_lines() for module in each),
        import_lines=sum(module.import_lines() for module in each),
        lines_of_a_module=statistics.median(len(m.text.splitlines()) for m in each),
        functions=len(functions),
        lines_of_a_function=statistics.median(functions),
        longest_function=max(functions),
        one_liners_percent=_percent([length <= 1 for length in functions]),
        used_once_percent=_percent([used == 1 for module in each for used in module.helpers()]),
        lone_modules=len(lone),
        names_in_two_packages=sum(len(p) > 1 for n, p in packages.items() if n[:2] != "__"),
    )


def _length(function: Function) -> int:
    has_text = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_text else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _percent(holds: list[bool]) -> int:
    return round(100 * sum(holds) / max(1, len(holds)))


# -- the ways of operations ------------------------------------------------------------------------


@dataclass
class Way:
    """What runs inside `followed`, in all threads."""

    _functions: set[tuple[str, CodeType]] = field(default_factory=set)
    _jumps: set[tuple[CodeType, CodeType]] = field(default_factory=set)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block whose calls are followed."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def modules(self) -> list[str]:
        """The modules that a reader opens."""
        return sorted({module for module, _ in self._functions})

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of modules, functions and jumps."""
        return {
            "modules": len(self.modules),
            "functions": len(self._functions),
            "jumps": len(self._jumps),
        }

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (module := _module_on_a_way(frame)) is None:
            return
        self._functions.add((module, frame.f_code))
        caller = frame.f_back
        while caller is not None and _module_on_a_way(caller) is None:
            caller = caller.f_back
        if caller is not None and _module_on_a_way(caller) != module:
            self._jumps.add((caller.f_code, frame.f_code))


def _module_on_a_way(frame: FrameType) -> str | None:
    package, _, name = frame.f_globals.get("__name__", "").partition(".")
    if package != "keytide" or frame.f_code.co_name.startswith("<"):
        return None
    return None if name.split(".")[0] in VOCABULARY else name


def ways(folder: str) -> Iterator[tuple[str, Way]]:
    """Small examples of operations, on tables in a folder. Each was run once before."""
    for name, (prepare, act) in _operations(folder).items():
        for _ in range(2):
            prepare()
            way = Way()
            with way.followed():
                act()
        yield name, way


def _operations(folder: str) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Operations by name: what prepares one, and the operation.

    Each has tables of its own, and no compaction runs behind a writer.
    """
    lake = kt.connect(f"{folder}/lake")
    columns = pa.schema({"id": pa.int64(), "v": pa.string(), "lsn": pa.int64()})
    rows = pl.DataFrame({"id": [1, 2, 3], "v": ["a", "b", "c"], "lsn": [10, 20, 30]})
    numbers = count(10, 10)

    def new_table(name: str, **options: str) -> Any:
        never = {"num-sorted-run.compaction-trigger": "100"}
        options = {"sequence.field": "lsn", "bucket": "1"} | never | options
        table = lake.create_table(f"db.{name}", columns, primary_key=["id"], options=options)
        table.write(rows)
        return table

    def flow(name: str, **how: Any) -> None:
        seq = next(numbers)
        events = pl.DataFrame({"id": [1, 2], "v": ["x", "y"], "seq": [seq, seq + 1]})
        lake.auto_cdc(f"db.{name}", events, keys=["id"], sequence_by="seq", **how)

    def sql(text: str) -> Any:
        return lake.sql(text).to_arrow()

    names = ("upsert", "read", "delete", "delete_sql", "merge", "compact", "changes")
    upsert, read, delete, delete_sql, _, compact, changes = map(new_table, names)
    dead_rows = {"deletion-vectors.enabled": "true", "publish": "delta,iceberg"}
    published = new_table("published", **dead_rows)
    external = _external_table(lake, folder)
    changes.write(rows)
    merge = (
        "MERGE INTO db.merge t USING (SELECT 1 AS id, 'z' AS v, 99 AS lsn) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    return {
        "upsert": (list, lambda: upsert.write(rows)),
        "scan": (list, lambda: read.scan().to_polars()),
        "get": (list, lambda: read.get(1)),
        "DELETE": (lambda: delete.write(rows), lambda: delete.delete(pl.col("id") == 1)),
        "DELETE in SQL": (
            lambda: delete_sql.write(rows), lambda: sql("DELETE FROM db.delete_sql WHERE id = 1"),
        ),
        "MERGE in SQL": (list, lambda: sql(merge)),
        "SELECT": (list, lambda: sql("SELECT id, v FROM db.read WHERE id > 1")),
        "compaction": (lambda: compact.write(rows), lambda: compact.compact(full=True)),
        "auto_cdc": (list, lambda: flow("latest")),
        "auto_cdc, histories": (list, lambda: flow("histories", stored_as_scd_type=2)),
        "changes": (list, lambda: changes.changes(1, 2).to_arrow()),
        "why": (list, lambda: read.why(2)),
        "external scan": (list, lambda: external.scan().to_polars()),
        "upsert and publish": (list, lambda: published.write(rows)),
    }  # fmt: skip


def _external_table(lake: Any, folder: str) -> Any:
    """A table over two files of versions."""
    for n in range(2):
        file = Path(folder, "files", f"{n}.parquet")
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [1, 2], "v": ["a", "b"], "ts": [n, n]}), file)
    return lake.create_external_table(
        "db.external", format="parquet", location=f"{folder}/files",
        primary_key=["id"], watermark_key=["ts"],
    )  # fmt: skip


def main() -> None:
    """Print the counts as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", action="store_true", help="also follow operations")
    parser.add_argument("--names", action="store_true", help="also name the modules of each way")
    arguments = parser.parse_args()
    result: dict[str, Any] = asdict(counts(modules()))
    if arguments.ways or arguments.names:
        with tempfile.TemporaryDirectory() as folder:
            for name, way in ways(folder):
                result[name] = way.counts | ({"names": way.modules} if arguments.names else {})
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
