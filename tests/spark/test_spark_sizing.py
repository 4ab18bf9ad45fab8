"""How many tasks work is divided into, from its size and from what a session says of itself."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.spark.capacity import (
    TASKS_PER_SLOT,
    Capacity,
    capacity_of_settings,
    pack,
    task_count,
    tasks_anywhere,
)

MB = 1 << 20
ON_YARN = {"spark.master": "yarn"}
DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}
CORES = {"spark.executor.cores": "4"}


def instances(count: int) -> dict[str, str]:
    return {"spark.executor.instances": str(count)}


@pytest.mark.parametrize(
    ("settings", "running", "expected"),
    [
        ({"spark.master": "local"}, 1, Capacity(1, 1, 1)),
        ({"spark.master": "local[3]"}, 3, Capacity(3, 3, 3)),
        ({"spark.master": "local[*]"}, 16, Capacity(16, 16, 16)),
        ({"spark.master": "local[*, 4]"}, None, Capacity(None, 1, 1)),
        ({"spark.master": "local-cluster[2,3,1024]"}, 2, Capacity(6, 3, 2)),
        # Before executors have registered, Spark says two.
        ({**ON_YARN, **instances(50), **CORES}, 2, Capacity(200, 4, 2)),
        ({**ON_YARN, **instances(50), **CORES, "spark.task.cpus": "2"}, 2, Capacity(100, 2, 2)),
        (ON_YARN, 2, Capacity(2, 1, 2)),
        ({**ON_YARN, **DYNAMIC}, 40, Capacity(None, 1, 2)),
        ({**ON_YARN, **DYNAMIC, **instances(1), **CORES}, 4, Capacity(None, 4, 2)),
        (
            {**ON_YARN, **DYNAMIC, **CORES, "spark.dynamicAllocation.maxExecutors": "20"},
            4,
            Capacity(80, 4, 2),
        ),
        ({"spark.master": "k8s://https://api", **instances(3)}, 2, Capacity(3, 1, 2)),
        ({"spark.master": "k8s://https://api", **instances(3)}, 9, Capacity(9, 1, 2)),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "24"}, 2, Capacity(24, 1, 2)),
        ({"spark.master": "spark://host:7077"}, 2, Capacity(None, 1, 2)),
        (
            {"spark.master": "spark://host:7077", "spark.default.parallelism": "64"},
            64,
            Capacity(64, 1, 64),
        ),
        (
            {**ON_YARN, **instances(5), "spark.sql.leafNodeDefaultParallelism": "7"},
            2,
            Capacity(5, 1, 7),
        ),
        ({}, None, Capacity(None, 1, 1)),
    ],
)
def test_capacity_is_what_a_cluster_will_have(
    settings: dict[str, str], running: int | None, expected: Capacity
) -> None:
    assert capacity_of_settings(settings, running) == expected


SLOTS = st.one_of(st.none(), st.integers(1, 5000))
BYTES = st.integers(0, 1 << 45)


@given(SLOTS, BYTES, st.integers(0, 1 << 36), st.sampled_from([1 << 14, 128 * MB]))
def test_tasks_are_neither_too_large_nor_too_many(
    slots: int | None, stored: int, rows: int, task_bytes: int
) -> None:
    count, work = task_count(Capacity(slots), stored, rows, task_bytes), max(stored, rows * 16)
    assert count >= 1
    assert work <= count * task_bytes
    least = ceil(work / task_bytes)
    if slots is not None:
        assert count <= max(1, least, slots * TASKS_PER_SLOT)
    # A small job does not get many tasks, however large the cluster is.
    assert count <= 1 + ceil(work * 8 / task_bytes)


@given(SLOTS, BYTES, BYTES)
def test_more_work_gets_no_fewer_tasks(slots: int | None, one: int, more: int) -> None:
    few, many = (task_count(Capacity(slots), work) for work in (one, one + more))
    assert few <= many


@pytest.mark.parametrize(
    ("slots", "stored", "expected"),
    [
        (2, 5_000, 1),
        (2, 62 * MB, 4),
        (100, 62 * MB, 4),
        (100, 10_000 * MB, 400),
        (100, 1_000_000 * MB, 7813),
        (None, 62 * MB, 4),
        (None, 10_000 * MB, 625),
        (4, None, 16),
        (None, None, 32),
    ],
)
def test_tasks_of_some_jobs(slots: int | None, stored: int | None, expected: int) -> None:
    assert task_count(Capacity(slots), stored) == expected
    assert slots is not None or tasks_anywhere(stored) == expected


@given(st.lists(st.integers(0, 1000)), st.integers(1, 20))
def test_bins_hold_every_task_once_and_are_of_about_equal_size(sizes: list[int], most: int) -> None:
    bins = pack(enumerate(sizes), most, lambda task: task[1])
    assert sorted(task for members in bins for task in members) == [*enumerate(sizes)]
    assert len(bins) == min(most, len(sizes))
    held = [sum(size for _, size in members) for members in bins]
    assert max(held, default=0) - min(held, default=0) <= max(sizes, default=0)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 20))
def test_neighbouring_bins_are_together_of_about_equal_size(sizes: list[int], most: int) -> None:
    bins = pack(sizes, 2 * most, lambda size: size)
    both = [
        sum(sum(members) for members in pair) for pair in zip(bins[::2], bins[1::2], strict=False)
    ]
    assert max(both, default=0) - min(both, default=0) <= 2 * max(sizes, default=0)
    held = [sum(members) for members in bins]
    assert not held or held[0] == max(held)
    assert len(held) < 2 or held[1] == min(held)
