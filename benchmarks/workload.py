"""The upsert workload: its rows, and a digest to check whether an engine returns them.

Needs only NumPy and pyarrow, so that engines with their own environments can import it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("c", pa.int64()),
        ("s", pa.string()),
    ]
)

UPSERTS = 10
_NEW_KEYS = 0.1
_BATCH_ROWS = 1 << 20
_DESCRIPTION = "workload.json"


@dataclass(frozen=True)
class Digest:
    """What is compared of a table: its row count and a sum over hashes of whole rows.

    The sum does not depend on the order of rows. A lost, duplicate or outdated row changes it.
    """

    rows: int
    checksum: int


@dataclass(frozen=True)
class Workload:
    """The files of one workload: the first load, the upserts, and the expected rows after each."""

    directory: Path
    rows: int
    upsert_rows: int
    digests: tuple[Digest, ...]

    @property
    def expected(self) -> Digest:
        """The expected rows after all upserts."""
        return self.digests[-1]

    def load_rows(self) -> pa.Table:
        """The rows to load, mapped into memory, with every page loaded."""
        return _mapped(self.directory / "load.arrow")

    def upserts(self) -> Iterator[pa.Table]:
        """The rows of each upsert, mapped in the same way."""
        for number in range(len(self.digests)):
            yield _mapped(self.directory / f"upsert-{number}.arrow")


def prepare(
    directory: Path, rows: int, *, upserts: int = UPSERTS, upsert_rows: int | None = None
) -> Workload:
    """Write the files of a workload.

    Keys are dense and in random order, and new keys are between old ones. An upsert has by default
    1 % of the rows. Nine out of ten of its rows have an existing key, in random order.
    """
    rng = np.random.default_rng(0)
    upsert_rows = upsert_rows or max(10, rows // 100)
    new_rows = int(upsert_rows * _NEW_KEYS)
    keys = rng.permutation(rows + upserts * new_rows)
    row_digests = np.zeros(len(keys), dtype=np.uint64)  # 0 for keys that do not exist yet
    digests = []
    directory.mkdir(parents=True)
    _write(directory / "load.arrow", keys[:rows], row_digests, rng)
    for number in range(upserts):
        known = rows + number * new_rows
        old = rng.choice(keys[:known], upsert_rows - new_rows, replace=False)
        upserted = np.concatenate([old, keys[known : known + new_rows]])
        rng.shuffle(upserted)
        _write(directory / f"upsert-{number}.arrow", upserted, row_digests, rng)
        digests.append(Digest(known + new_rows, int(row_digests.sum())))
    workload = Workload(directory, rows, upsert_rows, tuple(digests))
    (directory / _DESCRIPTION).write_text(
        json.dumps(
            {
                "rows": rows,
                "upsert_rows": upsert_rows,
                "digests": [asdict(each) for each in digests],
            }
        )
    )
    return workload


def open_workload(directory: Path) -> Workload:
    """The workload that `prepare` left in a directory."""
    found = json.loads((directory / _DESCRIPTION).read_text())
    digests = tuple(Digest(**each) for each in found["digests"])
    return Workload(directory, found["rows"], found["upsert_rows"], digests)


def digest(table: pa.Table) -> Digest:
    """The digest of a table. Raises `ValueError` for columns that do not match the workload's."""
    if set(table.column_names) != set(SCHEMA.names):
        raise ValueError(f"columns are {table.column_names}, expected {SCHEMA.names}")
    checksum = np.uint64(0)
    for batch in table.select(SCHEMA.names).to_batches(max_chunksize=_BATCH_ROWS):
        checksum += _row_digests(batch).sum()
    return Digest(table.num_rows, int(checksum))


def _write(path: Path, ids: np.ndarray, digests: np.ndarray, rng: np.random.Generator) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for start in range(0, len(ids), _BATCH_ROWS):
            batch = _batch(ids[start : start + _BATCH_ROWS], rng)
            digests[batch["id"].to_numpy()] = _row_digests(batch)
            writer.write_batch(batch)


def _batch(ids: np.ndarray, rng: np.random.Generator) -> pa.RecordBatch:
    rows = len(ids)
    columns = [
        pa.array(ids, pa.int64()),
        pa.array(rng.integers(0, 1000, rows)),
        pa.array(rng.random(rows)),
        pa.array(rng.integers(0, 1 << 40, rows)),
        pa.array(rng.integers(0, 100_000, rows)).cast(pa.string()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _mapped(path: Path) -> pa.Table:
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in filter(None, chunk.buffers()):
                np.frombuffer(buffer, np.uint8)[::4096].sum()  # load each page
    return table


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def _row_digests(batch: pa.RecordBatch) -> np.ndarray:
    mixed = np.zeros(batch.num_rows, dtype=np.uint64)
    for field in SCHEMA:
        bits = _bits(batch.column(field.name), field.type)
        mixed = (mixed ^ bits ^ (mixed >> np.uint64(29))) * _MULTIPLIER
    return mixed


def _bits(column: pa.Array, kind: pa.DataType) -> np.ndarray:
    if column.null_count:
        raise ValueError(f"a column has {column.null_count} NULLs, expected none")
    values = column.cast(kind)
    if pa.types.is_string(kind):
        values = values.cast(pa.int64())  # these strings are numbers
    return values.to_numpy(zero_copy_only=False).view(np.uint64)
