"""Iceberg tables for tests: written by the library, and by its parts what it does not offer."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record
from pyroaring import BitMap64

PATH_ID, POSITION_ID = 2147483546, 2147483545


def catalog(folder: Path) -> SqlCatalog:
    folder.mkdir(parents=True, exist_ok=True)
    made = SqlCatalog("default", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/w")
    made.create_namespace_if_not_exists("n")
    return made


def create(folder: Path, schema: pa.Schema, **properties: str) -> Table:
    return catalog(folder).create_table("n.t", schema, properties=properties)


def as_version(table: Table, version: int) -> None:
    """Let the newest metadata file say that it is of another version of the format."""
    path = Path(table.metadata_location.removeprefix("file://"))
    told = json.loads(path.read_text()) | {"format-version": version, "next-row-id": 9}
    path.write_text(json.dumps(told))


def live_files(table: Table) -> list[DataFile]:
    return sorted((task.file for task in table.scan().plan_files()), key=lambda f: f.file_path)


def delete_positions(
    table: Table,
    deletes: dict[str, Iterable[int]],
    *,
    puffin: bool = False,
    equality: bool = False,
) -> None:
    """Let rows be dead, in a snapshot of its own. One file has the deletes of all data files."""
    made = _puffin(table, deletes) if puffin else _parquet(table, deletes)
    content = DataFileContent.EQUALITY_DELETES if equality else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content,
        file_path=made,
        file_format=FileFormat.PUFFIN if puffin else FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
        equality_ids=[1] if equality else None,
    )
    file.spec_id = 0
    with (
        table.transaction() as transaction,
        _RowDelta(Operation.OVERWRITE, transaction, transaction._table.io) as delta,
    ):
        delta.delete_file = file
    table.refresh()


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    delete_file: DataFile

    def _process_manifests(self, manifests: list[Any]) -> list[Any]:
        metadata = self._transaction.table_metadata
        path = f"{metadata.location}/metadata/{uuid4()}.avro"
        with _DeleteManifest(
            metadata.spec(), metadata.schema(), self._io.new_output(path), self._snapshot_id, "null"
        ) as writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self.delete_file,
                )
            )
        return [*manifests, writer.to_manifest_file()]


def _parquet(table: Table, deletes: dict[str, Iterable[int]]) -> str:
    pairs = [(path, position) for path in sorted(deletes) for position in sorted(deletes[path])]
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
        ]
    )
    uri = f"{table.location()}/data/{uuid4()}.parquet"
    rows = pa.table([[p for p, _ in pairs], [n for _, n in pairs]], schema=schema)
    pq.write_table(rows, uri.removeprefix("file://"))
    return uri


def _puffin(table: Table, deletes: dict[str, Iterable[int]]) -> str:
    body, blobs = b"PFA1", []
    for path, positions in deletes.items():
        bitmap = struct.pack("<I", 1681511377) + BitMap64(sorted(positions)).serialize()
        blob = struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))
        blobs.append(
            {
                "type": "deletion-vector-v1", "fields": [], "snapshot-id": -1,
                "sequence-number": -1, "offset": len(body), "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": "1"},
            }
        )  # fmt: skip
        body += blob
    footer = json.dumps({"blobs": blobs, "properties": {}}).encode()
    uri = f"{table.location()}/data/{uuid4()}.puffin"
    data = body + b"PFA1" + footer + struct.pack("<I", len(footer)) + b"\0\0\0\0" + b"PFA1"
    Path(uri.removeprefix("file://")).write_bytes(data)
    return uri


def rewrite(table: Table, files: Sequence[DataFile], operation: Operation) -> None:
    """Put files together into one, in a snapshot that says so; dead rows must have been none."""
    if not files:
        return
    paths = [file.file_path.removeprefix("file://") for file in files]
    rows = pa.concat_tables([pq.read_table(path) for path in paths])
    uri = f"{table.location()}/data/{uuid4()}.parquet"
    pq.write_table(rows, uri.removeprefix("file://"))
    made = parquet_file_to_data_file(table.io, table.metadata, uri)
    with (
        table.transaction() as transaction,
        _OverwriteFiles(operation, transaction, transaction._table.io) as rewriting,
    ):
        for file in files:
            rewriting.delete_data_file(file)
        rewriting.append_data_file(made)
    table.refresh()
