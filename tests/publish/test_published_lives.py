"""Tables published for others: after every step of any life, all of them see what is shown.

What they see is a snapshot of the table, the newest one where nothing of it has to be merged.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import AddColumn
from keytide.publish.form import forget_publications
from keytide.types import parse_sql_type
from other_readers import READERS, Rows, iceberg_table, scanned
from row_ids import row_ids

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.string())])
RETAINED = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "1 h"}

KINDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "indexed": (["k", "p"], {"upsert.mode": "full", "bucket": "2"}),
    "indexed by parts": (["k", "p"], {"upsert.mode": "partial"}),
    "appended": ([], {}),
    "appended, marked": ([], {"deletion-vectors.enabled": "true"}),
    "marked": (["k", "p"], {"deletion-vectors.enabled": "true", "bucket": "1"}),
    "merged": (["k", "p"], {"bucket": "1", "num-sorted-run.compaction-trigger": "3"}),
    "merged over marks": (
        ["k", "p"],
        {"bucket": "1", "deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read":
         "true"},
    ),
}  # fmt: skip
PLAIN = {"indexed", "indexed by parts", "appended", "appended, marked", "marked"}
"""Kinds of which each snapshot can be published."""


@dataclass
class Life:
    """A table that is published, and what its readers are to find."""

    lake: kt.Lake
    table: kt.Table
    kind: str
    random: Random
    versions: dict[str, int | None] = field(default_factory=dict)
    expected: dict[str, Rows] = field(default_factory=dict)
    ids: dict[str, range] = field(default_factory=dict)
    table_of_ids: tuple[object, int] = (None, 0)

    @property
    def has_key(self) -> bool:
        return bool(KINDS[self.kind][0])

    def rows(self) -> list[dict[str, Any]]:
        keys = self.random.sample(range(8), self.random.randint(1, 5))
        added = dict.fromkeys(self.table.schema.names[3:], self.random.randint(0, 99))
        return [
            {"k": k, "p": "ab"[k % 2], "v": f"{self.random.randint(0, 99)}", **added} for k in keys
        ]

    def publications(self) -> list[dict[str, Any]]:
        return self.lake.sql("SELECT * FROM `t$publications`").to_pylist()

    def check(self) -> None:
        """Whatever happened, readers see the published snapshot, and it is the newest if can be."""
        newest = self.table.metadata.latest_snapshot_id()
        for told in self.publications():
            form, version = told["form"], told["version"]
            if version != self.versions.get(form):
                self.versions[form] = version
                self.expected[form] = scanned(self.table, told["snapshot_id"])
                if form == "iceberg":
                    self.check_row_ids()
            assert told["newest_snapshot_id"] == newest
            # After a rollback, another snapshot can have the id of the published one.
            if told["reason"] is None:
                assert told["snapshot_id"] == newest
                assert self.expected[form] == scanned(self.table, newest)
            else:
                assert told["snapshot_id"] != newest or self.expected[form] != scanned(
                    self.table, newest
                )
            if self.kind in PLAIN:
                assert told["snapshot_id"] == newest, told["reason"]
            if version is not None:
                for name, rows in READERS[form](self.table).items():
                    assert rows == self.expected[form], f"{name}, {form}"

    def check_row_ids(self) -> None:
        """A file keeps its ids for as long as the Iceberg table has any, and ids are given once."""
        metadata = iceberg_table(self.table).metadata
        assert str(metadata.format_version) == self.table.options["publish.iceberg.format-version"]
        before, self.table_of_ids = self.table_of_ids, (None, 0)
        if metadata.format_version < 3:
            return
        assert isinstance(metadata.next_row_id, int)
        self.table_of_ids = metadata.table_uuid, metadata.next_row_id
        is_other = before[0] != metadata.table_uuid
        known, free = ({}, 0) if is_other else (self.ids, before[1])
        self.ids = row_ids(self.table)
        for path, ids in self.ids.items():
            assert ids == known[path] if path in known else ids.start >= free
        taken = [number for ids in self.ids.values() for number in ids]
        assert len({*taken}) == len(taken)
        assert max(taken, default=-1) < metadata.next_row_id
        (snapshot,) = metadata.snapshots
        assert (snapshot.first_row_id or 0) >= free, "a step may publish more than once"
        given = (snapshot.first_row_id or 0) + (snapshot.added_rows or 0)
        assert given == metadata.next_row_id


def write(life: Life) -> None:
    life.table.write(life.rows())


def delete(life: Life) -> None:
    life.table.delete(f"k % 3 = {life.random.randint(0, 2)}")


def update(life: Life) -> None:
    life.table.update({"v": "'u'"}, f"k < {life.random.randint(1, 8)}")


def compact(life: Life) -> None:
    life.table.compact(full=life.random.random() < 0.7)


def expire(life: Life) -> None:
    life.table.expire_snapshots(retain_max=life.random.randint(1, 3), retain_min=1)


def roll_back(life: Life) -> None:
    ids = [each.id for each in life.table.snapshots()]
    if ids:
        life.table.rollback_to(life.random.choice(ids))
        lay_out(life)


def restore(life: Life) -> None:
    ids = [each.id for each in life.table.snapshots()]
    if ids:
        life.table.restore(life.random.choice(ids))
        lay_out(life)


def tag(life: Life) -> None:
    if life.table.snapshots():
        life.table.create_tag(f"t{life.random.random()}")


def add_column(life: Life) -> None:
    name = f"c{len(life.table.schema)}"
    life.table.alter(AddColumn((name,), parse_sql_type("INT")))


def overwrite(life: Life) -> None:
    life.table.overwrite(life.rows())


def truncate(life: Life) -> None:
    life.table.truncate()


def rescale(life: Life) -> None:
    if life.has_key and life.table.snapshots():
        life.lake.sql(f"ALTER TABLE t SET ('bucket' = '{life.random.randint(1, 3)}')")
        lay_out(life)


def lay_out(life: Life) -> None:
    """Have partitions as many buckets as the table, as whoever writes expects."""
    if life.has_key:
        life.table.rescale()


def change_version(life: Life) -> None:
    version = life.random.choice("233")
    life.lake.sql(f"ALTER TABLE t SET ('publish.iceberg.format-version' = '{version}')")
    life.table.publish()


def clean(life: Life) -> None:
    """Have everything go that nothing names at this moment, for nobody else is at work."""
    time.sleep(0.003)
    life.table.remove_orphan_files(time.time_ns() // 10**6, dry_run=False)


def begin_anew(life: Life) -> None:
    """As a process that has published nothing yet."""
    forget_publications()


STEPS = [
    write, write, write, write, delete, update, compact, compact, expire, roll_back, restore, tag,
    add_column, overwrite, truncate, rescale, begin_anew, change_version, change_version,
    clean,
]  # fmt: skip


def begun(folder: Path, kind: str, seed: int) -> Life:
    lake, random = kt.connect(str(folder)), Random(seed)
    key, options = KINDS[kind]
    version = random.choice("233")
    published = {"publish": "delta,iceberg", "publish.iceberg.format-version": version}
    every = {**RETAINED, **options, **published}
    return Life(lake, lake.create_table("t", SCHEMA, key, ["p"], options=every), kind, random)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """A publication that fails is a warning: none may."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", kt.KeytideWarning)
        yield


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), min_size=5, max_size=16))
def test_readers_see_the_published_snapshot_after_every_step(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int, steps: list[Callable[..., None]]
) -> None:
    life = begun(tmp_path_factory.mktemp("lake"), kind, seed)
    for step in [write, *steps]:
        step(life)
        life.check()
    life.table.compact(full=True)
    life.table.publish()
    life.check()
    assert all(told["reason"] is None for told in life.publications())
