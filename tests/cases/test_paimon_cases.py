"""Every case of merge engines, retractions and definitions, driven step by step.

Steps go through the public interface as it is meant to be; what is answered otherwise on purpose is
listed with what is answered, and docs/semantics.md says why.
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
from keytide.catalogs.system_tables import audit_log
from keytide.changes.follower import SNAPSHOT_ID, Pace, Start, follow
from keytide.definition.schema_evolution import RemoveOption, SetOption

CASES = json.loads((Path(__file__).parents[1] / "data/cases/paimon.json").read_text())

Case = dict[str, Any]
Step = dict[str, Any]
# In the cases VARBINARY stands for any length, while in SQL it would hold one byte.
TYPE_TEXTS = {"VARBINARY": "BYTES"}


# -- where Keytide differs ---------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """A case that is answered otherwise on purpose.

    `subject` is the row of "Where Keytide differs" in docs/semantics.md with the reason, and
    `members` are those of the case that are others here.
    """

    subject: str
    members: dict[str, Any]


def deviation(
    subject: str, *, steps: dict[int, Step] | None = None, **members: Any
) -> Callable[[Case], Deviation]:
    """A deviation by the steps that are others, of which None stands for those left out."""

    def of(case: Case) -> Deviation:
        given = dict(enumerate(case["steps"])) | (steps or {})
        ours = [step for _, step in sorted(given.items()) if step is not None]
        return Deviation(subject, {"steps": ours, "expect_changelog": None, **members})

    return of


def collected(case: Case) -> Deviation:
    """A -U takes the old value back, in the write that brings the new one too."""
    steps = {
        3: changelog(["-U", 1, ["A", "B"]], ["+U", 1, ["C", "D"]]),
        5: changelog(["-U", 1, ["C", "D"]], ["+U", 1, []]),
        9: changelog(["-U", 2, ["A", "B"]], ["+U", 2, ["C", "D"]]),
    }
    return deviation("retracts that meet an add in one write", steps=steps)(case)


def changelog(*rows: list[Any]) -> Step:
    return {"check_changelog": [[*row, "$any"] for row in rows]}


def refused_delete(step: int, engine: str) -> Callable[[Case], Deviation]:
    """A DELETE is refused, however compacted the table is, and all rows stay."""
    message = f"merge engine {engine} does not support DELETE of single rows"
    refused = {"delete": {"where": "id = 1"}, "expect_error": message}
    return deviation(
        "DELETE if the merge engine does not support deletes",
        steps={3: refused, step: refused},
        expect_rows=[[1, "a", 16 if engine == "aggregation" else None], [2, "b", None]],
    )


STREAMED = deviation("streams of tables without a changelog", expect_error=None, expect_rows=[])
DEVIATIONS: dict[str, Callable[[Case], Deviation]] = {
    "agg-streaming-none-rejected": STREAMED,
    "err-nullable-pk-stream-none": STREAMED,
    "agg-collect-retract-full-compaction-aggregation": collected,
    "agg-collect-retract-full-compaction-partial-update": collected,
    "dedup-ignore-delete-alter": deviation(
        "changing `sequence.field`, its order, sequence groups, merge functions, `ignore-delete` "
        "of a table with rows",
        steps={
            4: {
                "alter": {"ignore-delete": "true"},
                "expect_error": "cannot change 'ignore-delete' from true to false",
            },
            6: {"check_rows": []},
            9: None,
        },
    ),
    "dedup-ignore-delete-streaming-none": lambda case: deviation(
        "DELETE on a table with `ignore-delete`",
        steps={
            1: {
                "delete": {"where": "pk = 1"},
                "expect_error": "its option 'ignore-delete' drops deletes",
            }
        },
        expect_changelog=case["expect_changelog"],
    )(case),
    "cl-ignore-overwrite": deviation(
        "overwrites in streams",
        steps={
            4: {
                "check_changelog": [
                    ["-D", "1", "2", "3"],
                    ["-D", "4", "5", "6"],
                    ["+I", "7", "8", "9"],
                    ["+I", "9", "10", "11"],
                ]
            }
        },
    ),
    "spark-update-primary-key": deviation(
        "UPDATE of a primary key",
        expect_error=None,
        expect_rows=[[11, "a", "11"], [2, "b", "22"], [3, "c", "33"]],
    ),
    "spark-delete-aggregation": refused_delete(5, "aggregation"),
    "spark-delete-first-row": refused_delete(5, "first-row"),
    "spark-delete-lookup-first-row": refused_delete(3, "first-row"),
    "expire-record-level-aggregation": deviation(
        "rows older than `record-level.expire-time`",
        steps={4: {"check_rows": [[1, 3, None], [1, 4, "$now+3600"]]}},
    ),
}


def runnable_cases() -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in map(as_answered, CASES)]


def as_answered(case: Case) -> Case:
    """A case as Keytide answers it."""
    differs = DEVIATIONS.get(case["id"])
    return case if differs is None else case | differs(case).members


def test_every_deviation_is_listed_with_its_reason() -> None:
    semantics = (Path(__file__).parents[2] / "docs/semantics.md").read_text()
    differences = semantics[semantics.index("## Where Keytide differs") :]
    cases = {case["id"]: case for case in CASES}
    for case_id, differs in DEVIATIONS.items():
        assert f"\n| {differs(cases[case_id]).subject} |" in differences


# -- carrying a case out -----------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", runnable_cases())
def test_case(case: Case, lake: kt.Lake) -> None:
    run = Run(case, lake)
    if case.get("expect_error"):
        run.expect_error(case["expect_error"], run.carry_out)
        assert run.steps_done >= len(run.steps) - 1
        return
    run.carry_out()
    if "expect_rows" in case:
        run.check_rows(case["expect_rows"])
    if case.get("expect_changelog") is not None and not run.told:
        run.check_changelog(case["expect_changelog"])
    for key, bucket in case.get("expect_bucket_of", {}).items():
        assert run.buckets_of(key) == [bucket]


class Run:
    """One case on its way through its steps."""

    def __init__(self, case: Case, lake: kt.Lake) -> None:
        # What a table means does not depend on the format of its files, and only one is written.
        options = case["ddl"]["options"] | {"file.format": "parquet"}
        says_when = any("compact" in step for step in case["steps"])
        if options.get("changelog-producer") == "full-compaction" and says_when:
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
