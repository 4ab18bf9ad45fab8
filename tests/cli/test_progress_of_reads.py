"""The bar of a long read moves within a bucket, and ends where all is read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.cli import output
from keytide.read.requests import scan_table


class Recorder:
    """What a bar is told: how far it is, of how much."""

    def __init__(self) -> None:
        self.total, self.seen = 0, list[int]()

    def add_task(self, _: str, *, total: int, rows: str) -> int:
        assert rows == "0"
        self.total = total
        return 0

    def update(self, _: int, *, completed: int, rows: str = "") -> None:
        self.seen.append(completed)


def test_bar_moves_within_the_only_bucket(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    options = {"bucket": "1", "read.memory": "64 kb", "write-only": "true"}
    table = kt.connect(warehouse).create_table("t", schema, ["k"], options=options)
    for n in range(2):
        table.write(pa.table({"k": range(50_000), "v": [n] * 50_000}))
    bar = Recorder()

    @contextmanager
    def recorded(_: Any) -> Any:
        yield bar

    monkeypatch.setattr(output, "_bar", recorded)
    rows = sum(batch.num_rows for batch in output.tracked_batches(scan_table(table.stored)))
    assert rows == 50_000
    assert bar.total == bar.seen[-1] == 100_000
    assert len(set(bar.seen)) > 2
    assert bar.seen == sorted(bar.seen)
