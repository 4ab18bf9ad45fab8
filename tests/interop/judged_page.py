"""Judges all readers that are here, and writes what they do into `docs/judged-readers.md`.

`make judge` runs it. A reader that is not here keeps what the page says of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from keytide.testing.judge import make_tables

PROJECT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGE = PROJECT / "docs/judged-readers.md"
RESULTS = HERE / "judged_readers.json"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
CHDB_PYTHON = PROJECT / ".venv-chdb/bin/python"
SPARK_PYTHON = PROJECT / ".venv-spark-peers/bin/python"
_GROUPS_MAX, _DETAIL_MAX = 4, 140

Command = tuple[str, ...]
Verdict = dict[str, str]


def _own(reader: str) -> Command:
    return (sys.executable, str(HERE / "judged_readers.py"), reader)


def commands(scratch: Path) -> dict[str, tuple[str, Command]]:
    """The form and the command of each reader."""
    spark = (str(SPARK_PYTHON), str(HERE / "spark_reader.py"), str(scratch / "spark"))
    chdb = (str(CHDB_PYTHON), str(HERE / "clickhouse_reader.py"))
    keytide = (sys.executable, str(PROJECT / "tests/support/judged_reader.py"))
    return {
        "Keytide": ("paimon", keytide),
        "Java Paimon 1.4.2": ("paimon", _own("Java Paimon 1.4.2")),
        "Java Paimon 2.0.0": ("paimon", _own("Java Paimon 2.0.0")),
        "pypaimon": ("paimon", _own("pypaimon")),
        "pypaimon-rust": ("paimon", _own("pypaimon-rust")),
        "ClickHouse (chdb)": ("paimon", chdb),
        "deltalake, Delta": ("delta", _own("deltalake")),
        "Polars, Delta": ("delta", _own("Polars")),
        "DuckDB, Delta": ("delta", _own("DuckDB")),
        "Spark, Delta": ("delta", spark),
        "pyiceberg, Iceberg": ("iceberg", _own("pyiceberg")),
        "Polars, Iceberg": ("iceberg", _own("Polars")),
        "DuckDB, Iceberg": ("iceberg", _own("DuckDB")),
        "Spark, Iceberg": ("iceberg", spark),
    }


def judged(form: str, command: Command, tables: Path) -> list[Verdict]:
    """The verdicts about a reader."""
    judge = (sys.executable, "-m", "keytide.testing.judge")
    given = ("--tables", str(tables), "--form", form, "--json")
    done = subprocess.run([*judge, *given, *command], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def summary(verdicts: list[Verdict]) -> dict[str, Any]:
    """Counts by area, and what was wrong, by area and the first part of the name."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in verdicts:
        counts[each["area"]][each["outcome"]] += 1
        if each["outcome"] in ("wrong", "failed"):
            name = each["name"] if "published" in each["area"] else each["name"].rsplit(",", 2)[0]
            wrong[each["area"]][name].append(each["detail"])
    return {
        "counts": {area: dict(found) for area, found in counts.items()},
        "wrong": {
            area: {name: [len(details), details[0]] for name, details in names.items()}
            for area, names in wrong.items()
        },
    }


def markdown(results: dict[str, Any]) -> str:
    """The results as tables, and a list of what is wrong."""
    lines = ["| Reader | right | refused | wrong |", "| --- | ---: | ---: | ---: |"]
    for reader, found in results.items():
        total = sum((Counter(counts) for counts in found["counts"].values()), Counter[str]())
        wrong = total["wrong"] + total["failed"]
        lines.append(f"| {reader} | {total['right']} | {total['refused']} | {wrong} |")
    for reader, found in results.items():
        if not found["wrong"]:
            continue
        lines += ["", f"### {reader}", ""]
        for area, names in found["wrong"].items():
            shown = [*names.items()][:_GROUPS_MAX]
            for name, (count, detail) in shown:
                text = " ".join(detail.split())[:_DETAIL_MAX].replace("|", "\\|")
                tables = f"{count} table{'s' * (count > 1)}"
                lines.append(f"- {area}: {name}, {tables}. `{text}`")
            if len(names) > len(shown):
                lines.append(f"- {area}: {len(names) - len(shown)} more")
    return "\n".join(lines)


def page(text: str, results: dict[str, Any]) -> str:
    """The page with these results."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{markdown(results)}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Judge all readers that are here."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        tables = Path(scratch, "tables")
        make_tables(tables)
        for reader, (form, command) in commands(Path(scratch)).items():
            if not Path(command[0]).exists():
                continue
            found = judged(form, command, tables)
            if found:
                results[reader] = summary(found)
                print(reader, Counter(each["outcome"] for each in found), flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), results))


if __name__ == "__main__":  # also because the processes that make tables import this module
    main()
