"""The blocks of code on a page of the documents: which are run, and what they have to print.

A block is run unless a comment right above it says why not: `<!-- not run: ... -->`, or
`<!-- run with Spark -->`. Comments behind a `print`, or lines that begin with `# ` in a block of
Python, are what it prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keytide as kt

__all__ = [
    "ELSEWHERE",
    "NOT_RUN",
    "PAGES",
    "RUN",
    "WITH_SPARK",
    "Block",
    "blocks_of",
    "run_page",
]

PAGES = Path(__file__).parents[1] / "docs"
NOT_RUN, WITH_SPARK = "not run: ", "run with Spark"

RUN = (
    "index.md",
    "tutorial.md",
    "concepts/changelogs.md",
    "concepts/sequence-fields.md",
    "concepts/sequence-groups.md",
    "how-to/notebooks.md",
    "how-to/replace-merge-jobs.md",
    "how-to/scheduled-jobs.md",
)
"""Pages that tests/docs/test_pages.py runs from top to bottom."""

ELSEWHERE = {
    "coming-from-delta.md": "tests/test_coming_from.py",
    "coming-from-hudi.md": "tests/test_coming_from.py",
    "coming-from-iceberg.md": "tests/test_coming_from.py",
    "coming-from-paimon.md": "tests/test_coming_from.py",
    "coming-from-pinot.md": "tests/test_coming_from.py",
    "habits.md": "tests/test_habits.py",
    "write-a-connector.md": "tests/dml/test_guide.py",
}
"""Pages that other tests run, and these."""

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]+) -->\n)?^(?P<indent> *)```(?P<language>python|sql)\n"
    r"(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_PROMISE = re.compile(r"^[^#\n]*print\(.*\)\s+# (?P<beside>.+)$|^# (?P<below>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code."""

    language: str
    code: str
    line: int
    mark: str

    @property
    def promised(self) -> list[str]:
        """What it prints, line by line."""
        if self.language != "python":
            return []
        return [found["beside"] or found["below"] for found in _PROMISE.finditer(self.code)]


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of Python and SQL on a page."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        code = re.sub(f"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        yield Block(found["language"], code, line, found["mark"] or "")


def run_page(
    page: Path, names: dict[str, Any], printed: Callable[[], str], *, with_spark: bool = False
) -> int:
    """Run a page from top to bottom, and hold what it prints to its comments.

    `names` are those that the page begins with, `printed` gives what was printed since it was asked
    last. How many blocks were run.
    """
    count = 0
    for block in blocks_of(page):
        if block.mark.startswith(NOT_RUN) or (block.mark == WITH_SPARK and not with_spark):
            continue
        _run(block, page.name, names)
        assert printed().splitlines() == block.promised, f"{page.name}, line {block.line}"
        count += 1
    return count


def _run(block: Block, name: str, names: dict[str, Any]) -> None:
    if block.language == "sql":
        lake = names.setdefault("lake", kt.connect("lake"))
        lake.sql(block.code)
    else:
        exec(compile("\n" * block.line + block.code, name, "exec"), names)
