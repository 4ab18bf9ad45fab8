"""How often an operation asks a far store, and how often it waits: the table of docs/requests.md.

Requests are counted at the client of an object store, which here answers after a while; so those
that can go side by side do, and a chain of requests is as long as it is anywhere.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from far import Requests, far_away
from keytide.format.cache import forget_files
from keytide.snapshot.lineage import forget_lineages
from keytide.store import Store

ROWS, COMMITS = 1_000_000, 20
# Compactions and merges of manifests come every so often; each is an operation by itself.
OPTIONS = {
    "bucket": "1",
    "num-sorted-run.compaction-trigger": "100",
    "manifest.merge-min-count": "1000",
}
BUDGET = Path(__file__).parents[2] / "docs" / "requests.md"

Action: TypeAlias = "Callable[[kt.Lake, kt.Table], object]"


def new_rows(keys: np.ndarray) -> pa.Table:
    return pa.table({"k": keys, "v": np.random.default_rng(1).random(len(keys))})


def some_keys(count: int) -> np.ndarray:
    return np.random.default_rng(2).choice(ROWS, count, replace=False)


def batches(table: kt.Table) -> int:
    """What one round of a stream reads: the changes of the newest snapshot."""
    return len([*table.follow(newest(table) - 1, timeout_seconds=0)])


KEYS = itertools.count(1_000)  # each is there when it is looked for

ACTIONS: dict[str, Action] = {
    "`write` of 1,000 rows": lambda _, t: t.write(new_rows(some_keys(1_000))),
    "`get`": lambda _, t: t.get(17),
    "`get_many` of 100": lambda _, t: t.get_many(some_keys(100).tolist()),
    "`scan`": lambda _, t: t.scan().to_arrow(),
    "`scan` where `k = 17`": lambda _, t: t.scan(where="k = 17").to_arrow(),
    "`delete` of one key": lambda _, t: t.delete(f"k = {next(KEYS)}"),
    "`update` of one key": lambda _, t: t.update({"v": 1.0}, f"k = {next(KEYS)}"),
    "`SELECT` where `k = 17`": lambda lake, _: lake.sql("SELECT v FROM t WHERE k = 17").to_arrow(),
    "`changes` of one commit": lambda _, t: t.changes(newest(t) - 1, newest(t)).to_arrow(),
    "`snapshots`": lambda _, t: t.snapshots(),
    "`create_tag`": lambda _, t: t.create_tag(f"t{uuid.uuid4().hex}"),
    "`follow`, one round": lambda _, t: batches(t),
    "`get` by an index of keys": lambda _, t: t.get(17),
    "`get` of another key by it": lambda _, t: t.get(next(KEYS)),
    "`get_many` of 100 by it": lambda _, t: t.get_many(some_keys(100).tolist()),
    "`write` of 1,000 rows by it": lambda _, t: t.write(new_rows(some_keys(1_000))),
}


def table_of(name: str) -> str:
    """The table that an action is about."""
    return "indexed" if name.endswith(("by an index of keys", "by it")) else "t"


def newest(table: kt.Table) -> int:
    # What a caller knows: not counted as a part of the operation.
    return NEWEST[table.uri]


NEWEST: dict[str, int] = {}


def make_table(store: Store) -> None:
    """Two tables of a million rows and some commits, one of them with an index of keys."""
    lake = kt.connect(store.uri)
    for name, options in (("t", {}), ("indexed", {"upsert.mode": "full"})):
        schema = new_rows(np.arange(0)).schema
        table = lake.create_table(name, schema, ["k"], options=OPTIONS | options)
        table.write(new_rows(np.arange(ROWS)))
        for _ in range(COMMITS):
            table.write(new_rows(some_keys(1_000)))


table_copies = copies_of(make_table)


def as_a_new_process() -> None:
    forget_files()
    forget_lineages()


def counted(place: str, name: str, *, is_warm: bool, latency_s: float) -> Requests:
    """What an action requests, of a process that has done it before or has just begun."""
    lake, action = kt.connect(place), ACTIONS[name]
    table = lake.table(table_of(name))
    NEWEST[table.uri] = table.metadata.latest_snapshot_id() or 0
    if is_warm:
        action(lake, table)
        NEWEST[table.uri] = table.metadata.latest_snapshot_id() or 0
    else:
        as_a_new_process()
    with far_away(latency_s) as client, client.counted() as requests:
        if is_warm:
            action(lake, table)
        else:
            lake = kt.connect(place)
            action(lake, lake.table(table_of(name)))
    return requests


# Long enough that a machine begins what goes side by side before the first answer comes; the busier
# it is, the longer.
_LATENCIES_S = (0.1, 0.2, 0.4, 0.8)


def budget() -> dict[str, tuple[int, ...]]:
    lines = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$",
                       BUDGET.read_text(), re.MULTILINE)  # fmt: skip
    return {name: tuple(map(int, figures)) for name, *figures in lines}


def test_budget_names_every_action() -> None:
    assert list(budget()) == list(ACTIONS)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_action_keeps_to_its_budget(name: str, is_warm: bool) -> None:
    requests_max, waits_max = budget()[name][:2] if is_warm else budget()[name][2:]
    # A busy machine may begin late what goes side by side; it never makes a chain shorter.
    for latency_s in _LATENCIES_S:
        made = counted(table_copies().uri, name, is_warm=is_warm, latency_s=latency_s)
        if len(made) <= requests_max and made.waits <= waits_max:
            break
    assert 0 < len(made) <= requests_max, f"\n{made}"
    assert 0 < made.waits <= waits_max, f"\n{made}"
