"""Measures a key index separately, with more keys than a table here has: for
`key_index.py --index-keys`.

Entries are generated: hashes with the same distribution as those of keys, files of ten million
rows, and times within an hour in milliseconds. One run has all keys, and a newer one a tenth of
them again, as after upserts. A new process opens the index, looks up keys with nothing in memory,
and then others repeatedly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from keytide.format import paths
from keytide.format.index_files import KEY_INDEX, IndexFile, VectorRange
from keytide.key_index.indexed_keys import Entries, KeyHashes
from keytide.key_index.sorted_runs import Head, IndexedFile, StoredRun, write_run
from keytide.snapshot.bucket_key_index import load_key_index, open_keys
from keytide.store import LocalStore

__all__ = ["GOALS", "HEADINGS", "Figures", "draw", "measured"]

_FILE_ROWS, _HOUR_MS, _NOW_MS = 10_000_000, 3_600_000, 1_700_000_000_000
_PIECE_KEYS = 1 << 20
_TIMES = 5
_KEPT_BYTES = 256 << 20
_HEAD, _RUNS = "index-head", ("index-run-0", "index-run-1")


@dataclass(frozen=True)
class Figures:
    """The cost of an index with a number of keys."""

    keys: int
    bytes_a_key: float
    opening_ms: float
    cold_ms: float
    """A lookup of many keys with nothing in memory, including checksums."""
    warm_ms: float
    """Processor time of a lookup of as many keys with everything in memory."""
    write_ms: float
    """The same in the way of an upsert, which opens the index again."""
    rss_anon_mb: float

    def cells(self) -> list[str]:
        """The cells of a table row."""
        return [
            f"{self.keys:,}", f"{self.bytes_a_key:.1f}", f"{self.opening_ms:.1f}",
            f"{self.cold_ms:,.0f}", f"{self.warm_ms:.1f}", f"{self.write_ms:.1f}",
            f"{self.rss_anon_mb:,.0f}",
        ]  # fmt: skip


HEADINGS = ["keys", "bytes a key", "opening", "cold", "warm", "in an upsert", "RssAnon, MB"]
GOALS = {"bytes_a_key": 24.0, "opening_ms": 100.0, "warm_ms": 100.0, "rss_anon_mb": 512.0}
"""The maximum values for an index of any size."""


def measured(folder: Path, keys: int, asked: int) -> Figures:
    """Create an index, and measure it in a separate process."""
    _make(folder, keys, asked)
    for name in _RUNS:
        _drop_from_memory(folder / paths.index_path(name))
    found = subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True, check=True
    )
    stored = sum((folder / paths.index_path(name)).stat().st_size for name in (_HEAD, *_RUNS))
    return Figures(keys=keys, bytes_a_key=stored / keys, **json.loads(found.stdout))


def draw(figures: Sequence[Figures], path: Path) -> None:
    """Draw how each result grows with the number of keys, and its limit."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    titles = {
        "bytes_a_key": "bytes a key", "opening_ms": "opening, ms",
        "warm_ms": "100,000 lookups, ms", "rss_anon_mb": "RssAnon, MB",
    }  # fmt: skip
    figure, grid = plt.subplots(1, len(titles), layout="constrained", figsize=(13, 3))
    for axes, (name, title) in zip(grid, titles.items(), strict=True):
        values = [getattr(each, name) for each in figures]
        axes.plot([each.keys for each in figures], values, "o-", color="#0b5394")
        axes.axhline(GOALS[name], color="#cc4125", linestyle="--", linewidth=1)
        top = 1.15 * max(*values, GOALS[name])
        axes.set(xscale="log", title=title, xlabel="keys", ylim=(0, top))
    figure.savefig(path)
    plt.close(figure)


# -- creating --------------------------------------------------------------------------------------


def _make(folder: Path, keys: int, asked: int) -> None:
    """Store an index, and hashes of keys to look up."""
    store = LocalStore(str(folder))
    (folder / paths.INDEX_DIR).mkdir(parents=True, exist_ok=True)
    made = _Made(keys, asked)
    runs = [_stored(folder, _RUNS[0], made.entries()), _stored(folder, _RUNS[1], made.again)]
    files = tuple(
        IndexedFile(number, f"data-{number}", _FILE_ROWS, 0, _FILE_ROWS)
        for number in range(-(-keys // _FILE_ROWS))
    )
    store.put(paths.index_path(_HEAD), Head("xxh128", files, tuple(runs)).encode())
    heads = np.concatenate([hashes.heads for hashes in made.asked_for])
    checks = np.concatenate([hashes.checks for hashes in made.asked_for])
    np.savez(folder / "asked.npz", heads=heads, checks=checks)


def _stored(folder: Path, name: str, pieces: Iterable[Entries]) -> StoredRun:
    path = folder / paths.index_path(name)
    with path.open("wb") as output:
        entries = write_run(pieces, output)
    return StoredRun(name, entries, path.stat().st_size)


class _Made:
    """Entries for a number of keys, a tenth of them written again, and some to look up."""

    def __init__(self, keys: int, asked: int) -> None:
        self._keys, self._asked = keys, asked
        self.again: list[Entries] = []
        self.asked_for: list[KeyHashes] = []

    def entries(self) -> Iterator[Entries]:
        """The entries, in the order of the hashes."""
        rng = np.random.default_rng(0)
        pieces = -(-self._keys // _PIECE_KEYS)
        width = (1 << 64) // pieces
        for piece in range(pieces):
            count = min(_PIECE_KEYS, self._keys - piece * _PIECE_KEYS)
            low = piece * width
            heads = np.unique(rng.integers(low, low + width - 1, count, dtype=np.uint64))
            count = len(heads)
            hashes = KeyHashes(heads, rng.integers(0, 1 << 32, count, dtype=np.uint32))
            rows, times = rng.integers(0, self._keys, count), rng.integers(0, _HOUR_MS, count)
            found = Entries(hashes, rows // _FILE_ROWS, rows % _FILE_ROWS, _NOW_MS + times)
            self.again.append(found.take(slice(None, None, 10)))
            wanted = -(-self._asked * 2 * (_TIMES + 1) // pieces)
            self.asked_for.append(hashes.take(rng.integers(0, count, wanted)))
            yield found


def _drop_from_memory(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# -- measuring, in a separate process --------------------------------------------------------------


def _measure(folder: Path) -> dict[str, Any]:
    with np.load(folder / "asked.npz") as stored:
        every = KeyHashes(stored["heads"], stored["checks"])
    order = np.random.default_rng(1).permutation(len(every))
    parts = [every.take(places) for places in np.array_split(order, 2 * (_TIMES + 1))]
    store = LocalStore(str(folder))
    file = _index_file(folder)
    before = time.perf_counter()
    index = open_keys(store, file, _KEPT_BYTES)
    opening_ms = _ms_since(before)
    before = time.perf_counter()
    is_known, _ = index.find(parts[0])
    cold_ms = _ms_since(before)
    assert is_known.all()
    warm, write = [], []
    for one, other in zip(parts[2::2], parts[3::2], strict=True):
        before = time.perf_counter()
        index.find(one)
        between = time.perf_counter()
        load_key_index(store, file, _KEPT_BYTES).find(other)
        warm.append((between - before) * 1000)
        write.append((time.perf_counter() - between) * 1000)
    return {
        "opening_ms": opening_ms, "cold_ms": cold_ms, "warm_ms": median(warm),
        "write_ms": median(write), "rss_anon_mb": _anonymous_mb(),
    }  # fmt: skip


def _index_file(folder: Path) -> IndexFile:
    data = (folder / paths.index_path(_HEAD)).read_bytes()
    runs = Head.decode(data, _HEAD).runs
    ranges = tuple(VectorRange(run.name, 0, run.size, run.entries) for run in runs)
    return IndexFile(KEY_INDEX, b"", 0, _HEAD, len(data), sum(r.entries for r in runs), ranges)


def _ms_since(before: float) -> float:
    return (time.perf_counter() - before) * 1000


def _anonymous_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
