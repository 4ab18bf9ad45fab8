"""A compaction of one bucket is seen to go on by the rows that it has written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import keytide as kt
from keytide.cli import output
from keytide.maintenance.actions import compact
from keytide.tasks import Threads

SMALL_FILES = {"bucket": "1", "target-file-size": "64 kb", "read.memory": "256 kb"}


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "append"])
def test_rows_of_the_only_bucket_are_told(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, key: list[str]
) -> None:
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    options = {**SMALL_FILES, "write-only": "true"} | ({} if key else {"bucket": "-1"})
    table = kt.connect(warehouse).create_table("t", schema, key, options=options)
    for n in range(6):
        table.write(pa.table({"k": range(20_000), "v": [n] * 20_000}))
    told: list[tuple[int, int, int]] = []

    @contextmanager
    def recorded(what: str) -> Iterator[output.Show]:
        yield lambda done, total, rows=0: told.append((done, total, rows))

    monkeypatch.setattr(output, "progress_bar", recorded)
    compact(table.stored, full=True, runner=output.TrackedThreads(Threads(1), "buckets"))
    assert told[0] == (0, 1, 0)
    assert told[-1][:2] == (1, 1)
    rows = [rows for _, _, rows in told]
    assert rows[-1] == (20_000 if key else 120_000)
    assert len({*rows}) > 2, "nothing was told within the bucket"
