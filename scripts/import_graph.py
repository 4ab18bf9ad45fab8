"""Checks the imports of Keytide: no cycles, no upward imports. Draws them as a picture.

    python scripts/import_graph.py              prints problems, if any; the exit code is then 1
    python scripts/import_graph.py --svg PATH   also draws a picture of the packages (rooms)

Imports inside functions count too, and so does any string in the code that is the name of a module.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from html import escape
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

Graph = dict[str, frozenset[str]]

_NO_IMPORTS = {"keytide", "keytide.commit"}
"""Strings that name something else: the package itself, and a property of published tables."""

# From bottom to top. A room is a package or a group of modules. It may import itself, lower rooms,
# and rooms before it in the same row.
ROOMS = [
    ["errors"],
    ["base"],
    ["types", "telemetry", "options"],
    ["show"],
    ["store"],
    ["format"],
    ["key_index"],
    ["merge"],
    ["predicate", "definition"],
    ["gate"],
    ["snapshot", "tasks"],
    ["read", "changes", "write", "commit"],
    ["publish"],
    ["compaction"],
    ["maintenance"],
    ["verify"],
    ["catalogs"],
    ["dml"],
    ["sources"],
    ["feeds", "cdc", "sql"],
    ["spark"],
    ["lake"],
    ["duckdb", "pinot"],
    ["__init__"],
    ["testing"],
    ["ui"],
    ["cli", "__main__"],
]


def modules() -> list[str]:
    """Every module of the package, by its full name."""
    paths = sorted((SOURCE / "keytide").rglob("*.py"))
    names = (path.relative_to(SOURCE).with_suffix("").parts for path in paths)
    return [".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names]


def import_graph(instead: Mapping[str, str] | None = None) -> Graph:
    """The modules of the package that each module imports, by name or by string.

    `instead` has source code to use in place of some modules.
    """
    known = frozenset(modules())
    texts = {module: _text(module) for module in known} | dict(instead or {})
    return {module: _imports(text, known) - {module} for module, text in texts.items()}


def room_of(module: str) -> str:
    """The room of a module. That of `keytide` itself is `__init__`."""
    name = module.removeprefix("keytide").lstrip(".") or "__init__"
    rooms = [room for row in ROOMS for room in row if f"{name}.".startswith(f"{room}.")]
    return max(rooms, key=len, default=name)


def circles(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """An import cycle, if there is one, as the modules along it."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(module) for module in error.args[1]]
    return []


def arrows_up(graph: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """Imports of a higher room, or of one in no row."""
    height = {room: place for place, room in enumerate(r for row in ROOMS for r in row)}
    return sorted(
        (module, imported)
        for module, found in graph.items()
        for imported in found
        if height.get(room_of(imported), len(height)) > height.get(room_of(module), -1)
    )


def _text(module: str) -> str:
    path = SOURCE.joinpath(*module.split("."))
    package = path / "__init__.py"
    return (package if package.exists() else path.with_suffix(".py")).read_text()


@cache
def _imports(text: str, known: frozenset[str]) -> frozenset[str]:
    return frozenset(_imported(ast.parse(text), known))


def _imported(tree: ast.Module, known: frozenset[str]) -> Iterator[str]:
    docstrings: set[int] = set()
    for node in ast.walk(tree):  # parents before their children
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & known
            yield from names or ({node.module} & known)
        elif isinstance(node, ast.Constant) and id(node) not in docstrings and node.value in known:
            yield from {str(node.value)} - _NO_IMPORTS


# -- the picture -----------------------------------------------------------------------------------

_WIDTH, _ROW, _LEFT, _TOP, _IN_A_ROW = 900, 62, 30, 56, 5
_CAPTION = "The packages of Keytide: an arrow means that one imports the other"
_STYLE = (
    'text{font:13px system-ui,"DejaVu Sans",sans-serif;fill:#1d2b36}'
    ".name{font:600 13px ui-monospace,monospace}"
    ".room{fill:#e4f1e3;stroke:#5c9458}.arrow{stroke:#7b8b96;fill:none;stroke-opacity:.55}"
)


def picture(graph: Mapping[str, frozenset[str]]) -> str:
    """The rooms from top to bottom, and an arrow for each import from one into another."""
    between = {(room_of(module), room_of(name)) for module in graph for name in graph[module]}
    rows = [
        row[first : first + _IN_A_ROW]  # the first ones of a row are placed below the others
        for row in reversed(ROOMS)
        for first in reversed(range(0, len(row), _IN_A_ROW))
    ]
    places = dict(_places(rows))
    height = _TOP + len(rows) * _ROW + 20
    arrows = "".join(
        _arrow(places[above], places[below]) for above, below in sorted(between) if above != below
    )
    boxes = "".join(_box(room, places[room]) for room in places)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}"><style>{_STYLE}</style>'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="{_LEFT}" y="30">{_CAPTION}</text>{arrows}{boxes}</svg>\n'
    )


def _places(rows: list[list[str]]) -> Iterator[tuple[str, tuple[int, int]]]:
    for at, row in enumerate(rows):
        step = (_WIDTH - 2 * _LEFT) // len(row)
        for place, room in enumerate(row):
            # Single boxes alternate to the left and right, so that arrows between them are
            # distinguishable.
            lean = 40 * (-1) ** at if len(row) == 1 else 0
            yield room, (_LEFT + step * place + step // 2 + lean, _TOP + at * _ROW + 20)


def _box(room: str, place: tuple[int, int]) -> str:
    x, y = place
    label = "keytide" if room == "__init__" else room
    return (
        f'<rect class="room" x="{x - 80}" y="{y - 18}" width="160" height="36" rx="6"/>'
        f'<text class="name" x="{x}" y="{y + 5}" text-anchor="middle">{escape(label)}</text>'
    )


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = start, end
    bend = (x1 + x2) / 2 + (y2 - y1) / 3
    return f'<path class="arrow" d="M{x1} {y1} Q{bend:.0f} {(y1 + y2) // 2} {x2} {y2}"/>'


def main() -> int:
    """Print problems, and draw the picture if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--svg", type=Path, help="write the picture to this file")
    arguments = parser.parse_args()
    graph = import_graph()
    wrong = [f"{module} imports {imported}, which is above it" for module, imported in
             arrows_up(graph)]  # fmt: skip
    if circle := circles(graph):
        wrong.append("a cycle: " + " -> ".join(circle))
    print("\n".join(wrong) or f"{len(graph)} modules, no cycle, no upward import")
    if arguments.svg is not None:
        arguments.svg.write_text(picture(graph))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
