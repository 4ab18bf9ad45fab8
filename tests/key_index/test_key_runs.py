"""Runs of an index of keys: what they say together, however often they were merged."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.format.index_files import write_vectors
from keytide.key_index import sorted_runs
from keytide.key_index.indexed_keys import Entries, KeyHashes
from keytide.key_index.sorted_runs import Run, merged, write_run
from keytide.snapshot.live_files import DeadRows

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
BLOCK, STRETCH = 8, 3

KEYS = st.tuples(st.integers(0, 25), st.integers(0, 1))
"""Head and checksum: a few heads are those of two keys."""
PARTS = st.lists(st.dictionaries(KEYS, st.integers(0, 300), max_size=20), max_size=6)


def entries_of(part: dict[tuple[int, int], int]) -> Entries:
    rows = np.array([(*key, value) for key, value in sorted(part.items())], np.int64).reshape(-1, 3)
    hashes = KeyHashes(rows[:, 0].astype(np.uint64), rows[:, 1].astype(np.uint32))
    return Entries(hashes, rows[:, 2] % 3, rows[:, 2], rows[:, 2] - 5)


def stored(parts: Sequence[Run | Entries]) -> Run:
    output = io.BytesIO()
    write_run(merged(parts), output, BLOCK)
    return Run.of(np.frombuffer(output.getvalue(), np.uint8), "run")


def as_dict(found: Entries) -> dict[tuple[int, int], tuple[int, int, int]]:
    columns = (found.hashes.heads, found.hashes.checks, found.files, found.positions,
               found.comparisons)  # fmt: skip
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(head, check): (file, at, than) for head, check, file, at, than in rows}


@settings(max_examples=15)
@given(parts=PARTS)
def test_runs_merged_one_after_the_other_say_the_newest_in_whole_blocks(
    parts: list[dict[tuple[int, int], int]],
) -> None:
    newest = {key: value for part in parts for key, value in part.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "_STRETCH_ENTRIES", STRETCH)
        run = stored([])
        for part in parts:
            run = stored([run, entries_of(part)])
        at_once = stored([stored([entries_of(part)]) for part in parts])
    every = Entries.together([run.entries(block) for block in run.blocks])
    assert as_dict(every) == {key: (v % 3, v, v - 5) for key, v in newest.items()}
    assert list(as_dict(every)) == sorted(newest)
    assert all(BLOCK <= block.entries <= BLOCK + 1 for block in run.blocks[:-1])
    assert at_once.data.tobytes() == run.data.tobytes()
    places, found = run.find(every.hashes)
    assert sorted(places.tolist()) == list(range(len(newest)))
    assert as_dict(found) == as_dict(every)


def test_keys_of_one_head_stay_in_their_order() -> None:
    heads = np.array([7, 3, 7, 1, 3, 7] * 200, np.uint64)
    expected = sorted(range(len(heads)), key=lambda place: heads[place])
    hashes = KeyHashes(heads, np.arange(len(heads), dtype=np.uint32))
    assert hashes.order.tolist() == expected
    assert hashes.ordered.checks.tolist() == expected


def test_other_runs_together_are_no_longer_than_the_longest(lake: kt.Lake) -> None:
    """A commit takes up runs before it that are less than twice as long, so there are few."""
    table = lake.create_table("t", SCHEMA, ["k"], options={"upsert.mode": "full"})
    for number in range(12):
        table.write([{"k": number}])
        snapshot = table.metadata.latest_snapshot()
        assert snapshot is not None
        (head,) = (
            f for f in table.metadata.index_files(snapshot) if f.index_type == "KEYTIDE_KEYS"
        )
        counts = [place.cardinality or 0 for place in head.ranges or ()]
        assert sum(counts) == number + 1
        assert sum(counts) <= 2 * counts[0]
        assert 2 ** (len(counts) - 1) <= number + 1


def test_place_that_no_vector_of_32_bits_holds_is_refused() -> None:
    dead = DeadRows().marking({"file": np.array([3, (1 << 32) + 3])}, wide=False)
    with pytest.raises(kt.InvalidError, match="does not fit a 32-bit deletion vector"):
        write_vectors(dead.vectors)
