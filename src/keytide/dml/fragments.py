"""Fragments: the results of page sources and merge sinks for `finish_...`, as bytes.

A fragment is an Arrow IPC stream of one table, whose schema contains facts as JSON. Facts and rows
belong to the connector. This module adds a version, the split and the attempt. A `Spool` buffers
rows until the end of a split: in memory up to a limit, then on disk.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.dml.spi import Fragment
from keytide.errors import ConnectorError

# -- fragments -------------------------------------------------------------------------------------


VERSION = 1
_KEY = b"keytide.fragment"


@dataclass(frozen=True)
class Told:
    """The content of one fragment: split, attempt, facts and rows."""

    split: int
    attempt: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: pa.Table = field(default_factory=lambda: pa.table({}))


def new_attempt() -> str:
    """A unique name for an attempt at a split."""
    return uuid4().hex


def write_fragment(contents: Told) -> Fragment:
    """A fragment with this content. Facts must be JSON values."""
    header = {
        "version": VERSION,
        "split": contents.split,
        "attempt": contents.attempt,
        "facts": contents.facts,
    }
    table = contents.rows.replace_schema_metadata({_KEY: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_fragments(fragments: Iterable[Fragment]) -> list[Told]:
    """The content of fragments, one attempt for each split, in the order of the splits.

    If a split was processed twice, only the first attempt is used, as a whole. A duplicate fragment
    also counts once. Raises `ConnectorError` for bytes that are not a fragment of this version.
    """
    taken: dict[int, str] = {}
    found: list[Told] = []
    for fragment in dict.fromkeys(fragments):
        try:
            with pa.ipc.open_stream(fragment) as reader:
                rows = reader.read_all()
            header = json.loads(rows.schema.metadata[_KEY])
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ConnectorError(
                f"a fragment of {len(fragment)} bytes was not created by `write_fragment`: {error}"
            ) from error
        if header["version"] != VERSION:
            raise ConnectorError(
                f"a fragment has version {header['version']}, but this release reads {VERSION}: "
                "use the same release of Keytide on the driver and on all workers"
            )
        split, attempt = header["split"], header["attempt"]
        if taken.setdefault(split, attempt) == attempt:
            found.append(Told(split, attempt, header["facts"], rows.replace_schema_metadata()))
    return sorted(found, key=lambda contents: contents.split)


# -- the row buffer of a split ---------------------------------------------------------------------


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
            table = pa.Table.from_batches(self._held).combine_chunks()
            if self._writer is None:
                with tempfile.NamedTemporaryFile(prefix="keytide-dml-", delete=False) as file:
                    self._path = Path(file.name)
                self._writer = pa.ipc.new_file(str(self._path), table.schema)
            self._writer.write_table(table)
            self._held.clear()
            self._held_bytes = 0

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
