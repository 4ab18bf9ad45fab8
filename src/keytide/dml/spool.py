"""A buffer for rows until the end of a split: in memory up to a limit, then on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

__all__ = ["Spool"]


class Spool:
    """Batches of one schema, returned in order.

    Holds about `memory_bytes` of them in memory. The rest goes to a temporary file, which `close`
    removes. Not thread-safe.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._path: Path | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self.rows += batch.num_rows
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def tables(self) -> Iterator[pa.Table]:
        """All batches, in tables that fit into the memory limit. Can be called repeatedly.

        Nothing can be added afterwards.
        """
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._path is not None:
            with pa.memory_map(str(self._path)) as file, pa.ipc.open_file(file) as reader:
                for place in range(reader.num_record_batches):
                    yield pa.Table.from_batches([reader.get_batch(place)])
        if self._held:
            yield pa.Table.from_batches(self._held)

    def close(self) -> None:
        """Discard everything. Can be called repeatedly."""
        self._held.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
            self._path = None

    def _spill(self) -> None:
        table = pa.Table.from_batches(self._held).combine_chunks()
        if self._writer is None:
            with tempfile.NamedTemporaryFile(prefix="keytide-dml-", delete=False) as file:
                self._path = Path(file.name)
            self._writer = pa.ipc.new_file(str(self._path), table.schema)
        self._writer.write_table(table)
        self._held.clear()
        self._held_bytes = 0
