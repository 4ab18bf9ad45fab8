"""The ids of rows that an Iceberg table of version 3 gives, computed of its files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro

import keytide as kt
from other_readers import iceberg_table

__all__ = ["row_ids"]


def row_ids(table: kt.Table) -> dict[str, range]:
    """The ids of the rows of each data file, by its path: places in order, dead rows too."""
    snapshot = iceberg_table(table).current_snapshot()
    assert snapshot is not None
    found: dict[str, range] = {}
    for manifest in records(snapshot.manifest_list):
        if manifest["content"] == 0:
            free = manifest["first_row_id"]
            for entry in records(manifest["manifest_path"]):
                file = entry["data_file"]
                first = file.get("first_row_id")
                if first is None:
                    first, free = free, free + file["record_count"]
                found[file["file_path"]] = range(first, first + file["record_count"])
        else:
            assert manifest["first_row_id"] is None
    return found


def records(path: str) -> list[dict[str, Any]]:
    with Path(path.removeprefix("file://")).open("rb") as file:
        return [dict(each) for each in fastavro.reader(file)]  # type: ignore[arg-type]  # records
