"""Every case of merge engines, retractions and definitions, driven step by step.

Steps go through the public interface as it is meant to be; a case that needs something this
release lacks is a strict expected failure that names the exception and the reason.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import keytide as kt
from json_values import arrow_table, rows_as_text
from keytide.table.changes.follow import SNAPSHOT_ID, Pace, Start, follow
from keytide.table.definition.evolution import RemoveOption, SetOption
from keytide.table.system_tables import audit_log

CASES = json.loads((Path(__file__).parents[1] / "data/cases/paimon.json").read_text())

Case = dict[str, Any]
Step = dict[str, Any]
# In the cases VARBINARY stands for any length, while in SQL it would hold one byte.
TYPE_TEXTS = {"VARBINARY": "BYTES"}


# -- what this release lacks -----------------------------------------------------------------------


@dataclass(frozen=True)
class Lack:
    """Something missing, the exception that says so, and which cases meet it first."""

    reason: str
    raises: type[BaseException]
    concerns: Callable[[Case], bool]


def has_option(key: str, *values: str) -> Callable[[Case], bool]:
    return lambda case: case["ddl"]["options"].get(key) in values


def has_step(name: str) -> Callable[[Case], bool]:
    return lambda case: any(name in step for step in case["steps"])


def is_one_of(*ids: str) -> Callable[[Case], bool]:
    return lambda case: case["id"] in ids


# In the order in which a case would meet them: definition, first write, later steps.
LACKS = [
    Lack("deletes by rewriting compacted files", AssertionError,
         is_one_of("spark-delete-aggregation", "spark-delete-first-row")),
    Lack("deletes by rewriting compacted files", kt.UnsupportedError,
         is_one_of("spark-delete-lookup-first-row")),
    Lack("a DELETE that the table drops without a word", kt.UnsupportedError,
         is_one_of("dedup-ignore-delete-streaming-none")),
    Lack("expired rows that are shown until a compaction", AssertionError,
         is_one_of("expire-record-level-aggregation")),
    Lack("a change of 'ignore-delete' under stored rows", kt.InvalidError,
         is_one_of("dedup-ignore-delete-alter")),
    Lack("streams that leave overwrites out", AssertionError, is_one_of("cl-ignore-overwrite")),
    Lack("a way to lose the retract of an old value in the write that brings the new one",
         AssertionError, is_one_of("agg-collect-retract-full-compaction-aggregation",
                                   "agg-collect-retract-full-compaction-partial-update")),
    Lack("a reason to refuse streams: they are exact for every table", pytest.fail.Exception,
         has_step("streaming_read")),
]  # fmt: skip


def runnable_cases() -> list[Any]:
    return [
        pytest.param(case, id=case["id"], marks=[expected_failure(case, lack)] if lack else [])
        for case in CASES
        for lack in [first_lack(case)]
    ]


def first_lack(case: Case) -> Lack | None:
    if "expect_error" in case and not case["steps"]:
        return None  # a definition that is refused needs nothing
    return next((lack for lack in LACKS if lack.concerns(case)), None)


def expected_failure(case: Case, lack: Lack) -> pytest.MarkDecorator:
    # Where an error is expected, the lack's own error comes instead of it.
    comes_first = "expect_error" in case and issubclass(lack.raises, kt.KeytideError)
    return pytest.mark.xfail(
        raises=AssertionError if comes_first else lack.raises,
        reason=f"this release lacks {lack.reason}",
        strict=True,
    )


# -- carrying a case out -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", runnable_cases())
def test_case(case: Case, warehouse: str) -> None:
    run = Run(case, kt.connect(warehouse))
    if "expect_error" in case:
        run.expect_error(case["expect_error"], run.carry_out)
        assert run.steps_done >= len(run.steps) - 1
        return
    run.carry_out()
    if "expect_rows" in case:
        run.check_rows(case["expect_rows"])
    if "expect_changelog" in case and not run.told:
        run.check_changelog(case["expect_changelog"])
    for key, bucket in case.get("expect_bucket_of", {}).items():
        assert run.buckets_of(key) == [bucket]


class Run:
    """One case on its way through its steps."""

    def __init__(self, case: Case, lake: kt.Lake) -> None:
        # What a table means does not depend on the format of its files, and only one is written.
        options = case["ddl"]["options"] | {"file.format": "parquet"}
        if has_option("changelog-producer", "full-compaction")(case) and has_step("compact")(case):
            options["write-only"] = "true"  # it says itself when full compactions run
        self.ddl = case["ddl"] | {"options": options}
        self.read_options = case.get("read_options", {})
        self.steps = case["steps"]
        self.steps_done = 0
        self.lake = lake
        self.told = 0
        """The snapshot up to which a changelog was checked."""
        self.now = int(time.time())
        self.types = [kt.parse_sql_type(TYPE_TEXTS.get(text, text)) for text in self.ddl["types"]]

    def carry_out(self) -> None:
        self.lake.create_table(
            "t",
            [kt.Field(-1, n, t) for n, t in zip(self.ddl["columns"], self.types, strict=True)],
            primary_key=self.ddl["primary_key"],
            partition_by=self.ddl["partition_keys"],
            options=self.ddl["options"],
        )
        for step in self.steps:
            self.take(step)
            self.steps_done += 1
        self.table.scan().to_arrow()  # some errors can only be found by a merge

    @property
    def table(self) -> kt.Table:
        return self.lake.table("t")

    def take(self, step: Step) -> None:
        name = next(name for name in STEPS if name in step)
        if "expect_error" in step:
            self.expect_error(step["expect_error"], lambda: STEPS[name](self, step))
        else:
            STEPS[name](self, step)

    def insert(self, rows: list[list[Any]]) -> None:
        given = self.rows([row[1:] for row in rows])
        if "rowkind.field" not in self.table.options:  # else a column of the row says its kind
            given = given.append_column("_row_kind", [[row[0] for row in rows]])
        self.table.write(given)

    def overwrite(self, rows: list[list[Any]] | str) -> None:
        if isinstance(rows, str):  # a query of the table itself
            self.lake.sql(f"INSERT OVERWRITE t {rows}")
        else:
            self.table.overwrite(self.rows(rows))

    def check_rows(self, rows: list[list[Any]], where: str | None = None) -> None:
        found = self.table.scan(where=where).to_arrow()
        assert self.text(found) == self.text(self.rows(rows))

    def check_merged_rows(self, step: Step) -> None:
        # "single_record_pass" tells what the function makes of a lone row, which no table shows.
        if "single_record_pass" not in step:
            self.check_rows(step["check_rows"])

    def check_changelog(self, rows: list[list[Any]]) -> None:
        """What a producer stores; without one, what differs, where equal rows are no pairs."""
        stores = self.ddl["options"].get("changelog-producer", "none") != "none"
        mode = "changelog" if stores else "diff"
        found = self.full_rows(mode)
        ids = [s.id for s in self.table.snapshots() if s.id > self.told]
        found += [self.table.changes(n - 1, n, mode).to_arrow() for n in ids]
        self.told = max(ids, default=self.told)
        rows = rows if stores else without_equal_pairs(rows)
        names = [
            name
            for place, name in enumerate(self.ddl["columns"], 1)
            if not any(row[place] == "$any" for row in rows)
        ]
        expected = self.with_kinds(rows).select(["_row_kind", *names])
        told = pa.concat_tables(
            [
                expected.slice(0, 0),
                *(t.select(expected.schema.names).cast(expected.schema) for t in found),
            ]
        )
        assert self.text(told) == self.text(expected)

    def full_rows(self, mode: str) -> list[pa.Table]:
        """The rows of the snapshot that a case begins with, if it does with one."""
        first = self.read_options.get("scan.snapshot-id")
        if first is None:
            return []
        self.told = int(first)
        stored = self.table.stored
        start = Start(self.told, is_full=True)
        batches = follow(stored, start, mode, Pace(timeout_seconds=0))
        full = [b for b in batches if int(b.schema.metadata[SNAPSHOT_ID]) == self.told]
        return [pa.Table.from_batches(full)]

    def with_kinds(self, rows: list[list[Any]], name: str = "_row_kind") -> pa.Table:
        values = [[None if item == "$any" else item for item in row[1:]] for row in rows]
        kinds = pa.array([row[0] for row in rows], pa.string())
        return self.rows(values).add_column(0, name, kinds)

    def increments(self, between: str, mode: str) -> pa.Table:
        """What Paimon tells of changes: the rows after, all of them as inserts, and deletes."""
        start, end = map(int, between.split(","))
        found = self.table.changes(start, end, mode).to_arrow()
        kinds = pa.array([k.replace("+U", "+I") for k in found["_row_kind"].to_pylist()])
        return found.set_column(0, "rowkind", kinds).filter(pc.not_equal(kinds, "-U"))

    def read(self, step: Step) -> None:
        options = step["read"].get("options", {})
        expected = step["expect_rows"]
        if "incremental-between" in options:
            mode = options["incremental-between-scan-mode"]
            found = self.increments(options["incremental-between"], mode)
            assert self.text(found) == self.text(self.with_kinds(expected, "rowkind"))
            return
        if options:
            self.table.alter(*(SetOption(*each) for each in options.items()))
        scan = self.table.scan(where=step["read"].get("where"))
        if options:
            self.table.alter(*map(RemoveOption, options))
        if step["read"].get("system_table") == "audit_log":
            assert self.text(audit_log(scan)) == self.text(self.with_kinds(expected, "rowkind"))
            return
        assert self.text(scan.to_arrow()) == self.text(self.rows(step["expect_rows"]))

    def update(self, set: dict[str, Any], where: str) -> None:
        values = ", ".join(f"{name} = {value!r}" for name, value in set.items())
        self.lake.sql(f"UPDATE t SET {values} WHERE {where}")

    def buckets_of(self, key: str) -> list[int]:
        scan = self.table.scan(where=f"{self.ddl['primary_key'][0]} = {key}")
        assert scan.count() == 1
        return [bucket.bucket for bucket in scan.plan.buckets]

    def rows(self, rows: list[list[Any]]) -> pa.Table:
        values = [[self.value(item) for item in row] for row in rows]
        return arrow_table(values, self.ddl["columns"], self.types)

    def value(self, item: Any) -> Any:
        if isinstance(item, str) and item.startswith("$now+"):
            return self.now + int(item.removeprefix("$now+"))
        return item

    def text(self, table: pa.Table) -> list[str]:
        bags = [key.split(".")[1] for key, value in self.ddl["options"].items()
                if value == "collect"]  # fmt: skip
        return rows_as_text(table, unordered=bags)

    def expect_error(self, expected: str, act: Callable[[], None]) -> None:
        with pytest.raises(kt.KeytideError) as caught:
            act()
        message = str(caught.value)
        assert names_in(expected, self.ddl) - names_in(message, self.ddl) == set()
        assert share_of_words(expected, message) >= 0.5, message


STEPS: dict[str, Callable[[Run, Step], None]] = {
    "insert": lambda run, step: run.insert(step["insert"]),
    "check_rows": lambda run, step: run.check_merged_rows(step),
    "check_changelog": lambda run, step: run.check_changelog(step["check_changelog"]),
    "read": lambda run, step: run.read(step),
    "compact": lambda run, step: run.table.compact(full=step["compact"] == "full"),
    "delete": lambda run, step: run.lake.sql(f"DELETE FROM t WHERE {step['delete']['where']}"),
    "update": lambda run, step: run.update(**step["update"]),
    "overwrite": lambda run, step: run.overwrite(step["overwrite"]),
    "alter": lambda run, step: run.table.alter(
        *(SetOption(*each) for each in step["alter"].items())
    ),
    "streaming_read": lambda run, step: list(run.table.follow(timeout_seconds=0)),
    "sleep_ms": lambda run, step: time.sleep(step["sleep_ms"] / 1000),
}


def without_equal_pairs(rows: list[list[Any]]) -> list[list[Any]]:
    """Changes without those that change nothing."""
    before = [row[1:] for row in rows if row[0] == "-U"]
    equal = [row[1:] for row in rows if row[0] == "+U" and row[1:] in before]
    return [row for row in rows if row[0] not in ("-U", "+U") or row[1:] not in equal]


# -- errors in other words -----------------------------------------------------------------------


def gist(message: str) -> str:
    """A message without remarks in brackets, the class of its exception, and templates."""
    return re.sub(r"\([^()]*\)|^\w+(Exception|Error):|'[^']*\$[^']*'='\w+'", " ", message)


def names_in(message: str, ddl: dict[str, Any]) -> set[str]:
    """Columns, options and quoted values that a message is about."""
    known = {*ddl["columns"], *ddl["options"]}
    tokens = re.findall(r"[\w.-]*\w", gist(message))
    quoted = re.findall(r"'([^']+)'", gist(message))
    return {token for token in tokens if token in known} | set(quoted)


def share_of_words(expected: str, message: str) -> float:
    """How many of the words of one message are found in another, singular and plural alike."""
    wanted, found = words_of(gist(expected)), words_of(message)
    return len(wanted & found) / max(1, len(wanted))


def words_of(message: str) -> set[str]:
    fillers = {"a", "an", "and", "be", "can", "in", "is", "it", "not", "of", "on", "the", "to"}
    words = re.findall(r"[a-z0-9_]+", message.lower())
    return {word.removesuffix("s") for word in words} - fillers
