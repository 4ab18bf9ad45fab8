"""The blocks of code in the documents: which test runs each of them, and what they must print.

Blocks of Python, SQL and consoles are run from the top of a page to its end. `RUN_BY` names the
test that runs a page. A mark above a block, such as `<!-- run with Spark -->`, says that it takes
another test, or more than the rest of the page does; `<!-- not run: ... -->` says why nothing here
can run it.

Comments behind a `print`, or lines that begin with `# ` in a block of Python, are what it prints.
In a console whose commands begin with `$ ` all other lines are what they print. `...` in what is
printed stands for anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keytide as kt
from consoles import run_console

__all__ = [
    "LANGUAGES",
    "NOT_RUN",
    "PAGES",
    "README",
    "RUN_BY",
    "WITH_KAFKA",
    "WITH_SPARK",
    "Block",
    "Changed",
    "blocks_of",
    "pages_run_by",
    "run_page",
]

PAGES = Path(__file__).parents[2] / "docs"
README = PAGES.parent / "README.md"
NOT_RUN = "not run: "
WITH_SPARK, WITH_KAFKA = "run with Spark", "run with Spark and Kafka"
LANGUAGES = ("python", "sql", "console")

_LOCAL, _SPARK = "tests/docs/test_pages.py", "tests/docs/test_pages_on_spark.py"
_OTHER_TOOLS, _KAFKA = "tests/test_coming_from.py", "tests/kafka/test_kafka_pages.py"

RUN_BY: dict[str, dict[str, str]] = {
    "": {
        "../README.md": "tests/test_readme.py",
        "adopting.md": _LOCAL,
        "api/index.md": _LOCAL,
        "auto-cdc.md": _LOCAL,
        "cache.md": _LOCAL,
        "catalogs.md": "tests/metastore/test_catalog_page.py",
        "coming-from-delta.md": _OTHER_TOOLS,
        "coming-from-hudi.md": _OTHER_TOOLS,
        "coming-from-iceberg.md": _OTHER_TOOLS,
        "coming-from-paimon.md": _OTHER_TOOLS,
        "coming-from-pinot.md": _OTHER_TOOLS,
        "concepts/sequence-fields.md": _LOCAL,
        "concepts/sequence-groups.md": _LOCAL,
        "external-tables.md": _LOCAL,
        "habits.md": "tests/test_habits.py",
        "how-fast.md": _LOCAL,
        "how-to/change-feeds.md": _SPARK,
        "how-to/kafka.md": _KAFKA,
        "how-to/notebooks.md": _LOCAL,
        "how-to/object-stores.md": _LOCAL,
        "how-to/pipelines.md": _SPARK,
        "how-to/replace-merge-jobs.md": _LOCAL,
        "how-to/scheduled-jobs.md": _LOCAL,
        "how-to/spark-connect.md": "tests/spark/test_spark_connect.py",
        "how-to/spark-without-a-jvm.md": "tests/spark/test_sail.py",
        "index.md": _LOCAL,
        "kafka.md": _KAFKA,
        "lazy.md": _LOCAL,
        "observing.md": _LOCAL,
        "publishing.md": _LOCAL,
        "reference/cli.md": "tests/docs/test_cli_page.py",
        "reference/installation.md": _LOCAL,
        "semantics.md": _LOCAL,
        "spark-cluster.md": _SPARK,
        "spark.md": _SPARK,
        "sql.md": _LOCAL,
        "stores.md": _LOCAL,
        "tutorial.md": _LOCAL,
        "ui.md": _LOCAL,
        "write-a-connector.md": "tests/dml/test_guide.py",
    },
    WITH_SPARK: {
        "../README.md": "tests/test_readme.py",
        "cache.md": _SPARK,
        "coming-from-paimon.md": _SPARK,
        "tutorial.md": _SPARK,
    },
    WITH_KAFKA: {"kafka.md": _KAFKA},
    "run with PostgreSQL": {"sql.md": "tests/dml/test_database_page.py"},
    "run with DuckDB's extensions": {"publishing.md": "tests/publish/test_published_page.py"},
    "run by the judge": {"judged-readers.md": "tests/judge/test_judge.py"},
}
"""By the mark of blocks: the pages that have such, and the test that runs these."""


def pages_run_by(test: str, mark: str = "") -> list[str]:
    """The pages of which a test runs the blocks with this mark."""
    return [page for page, by in RUN_BY[mark].items() if by == test]


_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]+) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n"
    r"(?P<code>.*?)^(?P=indent)```$",
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
        if self.language == "console" and "\n$ " in f"\n{self.code}":
            return [line for line in self.code.splitlines() if not line.startswith("$ ")]
        if self.language == "python":
            return [found["beside"] or found["below"] for found in _PROMISE.finditer(self.code)]
        return []


@dataclass(frozen=True)
class Changed:
    """What of a page reads otherwise where it is run: texts by others, and its absolute paths.

    Paths such as `/data/lake` are below `folder`.
    """

    folder: Path
    texts: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, code: str) -> str:
        for text, other in self.texts.items():
            code = code.replace(text, other)
        return _ABSOLUTE.sub(lambda found: f"{self.folder}{found[0]}", code)


_ABSOLUTE = re.compile(r"(?:(?<=[\"'\s=])|(?<=:///))/(?:checkpoints|data|feeds?|lake|var)\b")


def blocks_of(page: Path, languages: Collection[str] = LANGUAGES) -> Iterator[Block]:
    """The blocks of a page in some languages."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        if found["language"] in languages:
            line = text.count("\n", 0, found.start("code"))
            code = re.sub(f"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
            yield Block(found["language"], code, line, found["mark"] or "")


def run_page(
    page: Path, names: dict[str, Any], printed: Callable[[], str], *,
    marks: Collection[str] = (), changed: Callable[[str], str] = str,
) -> int:  # fmt: skip
    """Run a page from top to bottom, and compare what it prints with what it says.

    Blocks without a mark are run, and those with one of `marks`. `names` are those that the page
    begins with, `printed` gives what was printed since it was asked last, and `changed` how a text
    of the page reads here. How many blocks were run.
    """
    count = 0
    for block in blocks_of(page):
        if block.mark and block.mark not in marks:
            continue
        where = f"{page.name}, line {block.line}"
        told = _run(block, changed(block.code), where, names)
        found = [*printed().splitlines(), *told]
        if block.language != "console" or block.promised:
            promised = [changed(line) for line in block.promised]
            assert len(found) == len(promised), f"{where}: {found}"
            wrong = [pair for pair in zip(found, promised, strict=True) if not _is(*pair)]
            assert wrong == [], where
        count += 1
    return count


def _is(found: str, promised: str) -> bool:
    spelt = ".*".join(map(re.escape, promised.split("...")))
    return re.fullmatch(spelt, found) is not None


def _run(block: Block, code: str, where: str, names: dict[str, Any]) -> list[str]:
    """Run a block; gives what a console prints."""
    if block.language == "console":
        return run_console(code, where)
    if block.language == "sql":
        lake = names.setdefault("lake", kt.connect("lake"))
        lake.sql(code)
    else:
        exec(compile("\n" * block.line + code, where, "exec"), names)
    return []
