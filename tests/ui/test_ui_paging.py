"""Lakes with many tables and tables with many snapshots: a page reads what it shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from ui_requests import Browse

import keytide as kt
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.format.snapshot import Snapshot
from keytide.maintenance.overviews import PAGE_SNAPSHOTS, timeline_of
from keytide.store import Store
from keytide.store.local import LocalStore
from keytide.store.object_store import ObjectStore
from keytide.ui.http import PAGE_LINES


@contextmanager
def calls(monkeypatch: pytest.MonkeyPatch, kind: type[Store], name: str) -> Iterator[list[str]]:
    """The paths that stores of a kind are asked about meanwhile, by a method."""
    seen: list[str] = []
    method = getattr(kind, name)

    def noting(store: Store, path: str = "", *given: object) -> object:
        seen.append(path)
        return method(store, path, *given)

    with monkeypatch.context() as patched:
        patched.setattr(kind, name, noting)
        yield seen


def test_ten_thousand_tables_are_paged_and_only_those_shown_are_opened(
    browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = kt.connect("memory://many")
    lake.create_table("many.t", pa.schema([("k", pa.int64())]), ["k"])
    warehouse = lake.catalog.warehouse
    assert isinstance(warehouse, FolderWarehouse)
    schema = warehouse.store.read("many.db/t/schema/schema-0")
    for number in range(10_000):
        warehouse.store.put(f"many.db/t{number:05}/schema/schema-0", schema)
    warehouse.store.put("many.db/t04975-left-behind/tmp/file", b"")
    client = browse(lake)
    with calls(monkeypatch, ObjectStore, "read") as seen, calls(
        monkeypatch, ObjectStore, "exists"
    ) as looked, calls(monkeypatch, ObjectStore, "list_names") as listed:  # fmt: skip
        page = client.get("/?page=200").text
    assert "10,002 names" in page
    assert "many.t04974" in page
    assert "left-behind" not in page
    assert "many.t05000" not in page
    assert len(seen) <= 4 * PAGE_LINES
    assert len(looked) <= 2 * PAGE_LINES
    assert len(listed) <= 3 * PAGE_LINES
    assert "many.t09999" in client.get("/?page=999999").text
    assert "many.t09998" in client.get("/?search=T0999").text


def test_of_many_snapshots_only_those_of_the_page_are_read(
    browse: Browse, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = kt.connect(warehouse)
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    for number in range(2):
        table.write([{"k": number}])
    elsewhere = f"{warehouse}-copied"  # where this process has seen nothing yet
    shutil.copytree(warehouse, elsewhere)
    add_snapshots(Path(elsewhere, "default.db/t/snapshot"), table.metadata.snapshot(2), 100_000)
    lake = kt.connect(elsewhere)
    client = browse(lake)
    with calls(monkeypatch, LocalStore, "read") as seen:
        newest = client.get("/table/default.t/timeline").text
        older = client.get("/table/default.t/timeline?before=50001").text
    assert 'id="snapshot-100000"' in newest
    assert 'id="snapshot-50000"' in older
    assert f'id="snapshot-{50_000 - PAGE_SNAPSHOTS}"' not in older
    assert len(seen) < 4 * PAGE_SNAPSHOTS
    assert timeline_of(lake.catalog.table("t"), 1).older is None


def add_snapshots(folder: Path, like: Snapshot, count: int) -> None:
    """More snapshots of the same files, of which those are there that somebody may ask for."""
    for number in range(3, count + 1):
        if number <= 60 or number > count - 60 or 49_900 < number < 50_100:
            copied = replace(like, id=number, properties=None)  # it names no base
            (folder / f"snapshot-{number}").write_bytes(copied.to_json())
    (folder / "LATEST").write_text(str(count))


def test_pages_of_a_timeline_join_without_a_gap(lake: kt.Lake) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    for number in range(7):
        table.write([{"k": number}])
    seen, before = [], None
    while True:
        page = timeline_of(table.stored, before, count=3)
        seen += [moment.entry.snapshot_id for moment in page.entries]
        if page.older is None:
            break
        before = page.older
    assert seen == [*range(page.newest_id or 0, 0, -1)]
