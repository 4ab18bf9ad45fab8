"""Tables that name a second branch to read: Java takes each partition from the same branch."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from interop_judges import Condition, assert_reads_alike
from interop_values import field
from java_judge import JavaPaimon

import keytide as kt
from keytide.format import paths

OPTIONS = {"java-1.4.2": ["scan.fallback-branch"]}
"""By release: those that it knows. The others know both."""
BOTH = ["scan.fallback-branch", "scan.primary-branch"]
LAYOUTS = [
    {"bucket": "1"},
    {"bucket": "2", "deletion-vectors.enabled": "true"},
    {"bucket": "-1"},
]
COLUMNS = [field("p", "STRING NOT NULL"), field("k", "INT NOT NULL"), field("v", "STRING")]
CONDITIONS = [
    Condition("p", "=", ("b",)), Condition("k", ">", (0,)), Condition("v", ">", ("c",)),
]  # fmt: skip
PARTITIONS = ["a", "b", "c", "d"]


def changed(table: kt.Table, random_: random.Random, v: str) -> None:
    """Some rows are written, deleted and truncated, and sometimes compacted."""
    for number in range(random_.randint(0, 4)):
        rows = {
            (random_.choice(PARTITIONS), random_.randrange(3)): random_.choice(("+I", "+I", "-D"))
            for _ in range(random_.randint(1, 4))
        }
        said = [
            {"p": p, "k": k, "v": f"{v} {number}", "_row_kind": kind}
            for (p, k), kind in rows.items()
        ]
        table.write(pa.Table.from_pylist(said))
        if random_.random() < 0.3:
            table.truncate({"p": random_.choice(PARTITIONS)})
        if random_.random() < 0.4:
            table.compact(full=True)


@pytest.mark.parametrize("seed", range(12))
def test_interop_rows_of_two_branches_are_read_alike(
    java: JavaPaimon, lake: kt.Lake, seed: int
) -> None:
    random_ = random.Random(seed)
    layout = random_.choice(LAYOUTS)
    table = lake.create_table(
        "db.t", COLUMNS, ["p", "k"], partition_by=["p"], options={"write-only": "true", **layout}
    )
    if random_.random() < 0.5:
        changed(table, random_, "before")
    branch = table.create_branch("side", empty=random_.random() < 0.5)
    changed(table, random_, "table")
    changed(branch, random_, "branch")
    if "deletion-vectors.enabled" in layout:  # Java shows only what is compacted
        table.compact(full=True)
        branch.compact(full=True)
    schema = table.table_schema
    for number, option in enumerate(OPTIONS.get(java.name, BOTH), start=1):
        newer = replace(schema, id=schema.id + number, options={**schema.options, option: "side"})
        table.metadata.store.put(paths.schema_path(newer.id), newer.to_json())
        named = lake.table("db.t")
        assert named.options[option] == "side"
        assert_reads_alike(java, named)
        for condition in CONDITIONS:
            assert_reads_alike(java, named, where=[condition])
