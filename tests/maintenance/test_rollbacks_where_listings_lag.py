"""Rollbacks on a store that lists snapshots as they were a few changes ago."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.format.paths import parse_snapshot_name
from keytide.snapshot.lineage import forget_lineages
from keytide.store import Store
from keytide.store.faults import FaultyStore
from new_tables import empty_store, fields_of, table_in

SCHEMA = fields_of("k INT, v INT")


@dataclass
class Changes:
    """When each snapshot was created and deleted, counted in changes."""

    count: int = 0
    created: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)

    def note(self, what: dict[str, int], path: str) -> None:
        self.count += 1
        what[path] = self.count


class LateStore(FaultyStore):
    """Lists no snapshot of the last few changes, and all that were deleted in them."""

    def __init__(self, inner: Store, lag: Callable[[], int]) -> None:
        super().__init__(inner)
        self.lag, self.changes = lag, Changes()

    def list_names(self, directory: str = "") -> list[str]:
        names = super().list_names(directory)
        if not directory.strip("/").endswith("snapshot"):
            return names
        seen, folder = self.changes.count - self.lag(), f"{self._prefix}{directory.strip('/')}/"
        there = {n for n in names if self.changes.created.get(folder + n, 0) <= seen}
        gone = {p for p, when in self.changes.deleted.items() if when > seen}
        return sorted(there | {p.removeprefix(folder) for p in gone if p.startswith(folder)})

    def create(self, path: str, data: bytes) -> bool:
        self.changes.note(self.changes.created, self._prefix + path)
        return super().create(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        paths = [*paths]
        for path in paths:
            if super().exists(path):
                self.changes.note(self.changes.deleted, self._prefix + path)
        super().delete(paths)


STEPS = st.sampled_from(["write", "write", "write", "back", "back", "back to the tag", "look"])


@given(st.lists(STEPS, max_size=25), st.randoms(use_true_random=False))
def test_rollback_leaves_the_target_as_the_latest_snapshot(
    steps: list[str], chance: Random
) -> None:
    store = LateStore(empty_store(), lambda: chance.choice([0, 1, 2, 3, 8]))
    alone = {"write-only": "true", "snapshot.num-retained.min": "1"}
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=alone)
    table.write([{"k": 1, "v": 0}])
    table.create_tag("first", 1)
    shown = {1: 0}
    for number, step in enumerate(steps, start=1):
        newest = max(shown)
        if step == "write":
            table.write([{"k": 1, "v": number}])
            shown[newest + 1] = number
        elif step == "back to the tag":
            table.expire_snapshots(retain_max=2, retain_min=1)
            table.rollback_to("first")
            shown = {1: 0}
        elif step == "back":
            target = chance.choice(sorted(shown))
            table.rollback_to(target)
            shown = {n: v for n, v in shown.items() if n <= target}
        else:
            forget_lineages()
            table = table_in(store)
        assert table.get(1) == {"k": 1, "v": shown[max(shown)]}
        names = store.inner.list_names("default.db/t/snapshot")
        assert max(filter(None, map(parse_snapshot_name, names))) == max(shown)
