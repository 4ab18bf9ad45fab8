"""Writes to a far store: what is under way belongs to its write, whatever becomes of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

import keytide as kt
from far import FarClient, far_away
from keytide.catalogs import local_writes
from keytide.commit.transaction import Transaction
from keytide.errors import DataError
from keytide.format.data_file.parquet import remote_file
from keytide.snapshot.lineage import last_seen
from keytide.store import ObjectStore
from keytide.store.interface import Uploads
from new_tables import fields_of


@pytest.fixture
def client() -> Iterator[FarClient]:
    with far_away(0.02) as client:
        yield client


def new_table(**options: str) -> kt.Table:
    lake = kt.connect(f"memory://{uuid.uuid4().hex}/lake")
    fields = fields_of("k INT, v INT")
    table = lake.create_table("t", fields, ["k"], options={"bucket": "1", **options})
    table.write([{"k": 1, "v": 0}])
    return table


def data_files(table: kt.Table) -> set[str]:
    return {info.path for info in table.stored.store.list() if "/data-" in info.path}


def named_files(table: kt.Table) -> set[str]:
    stored = table.stored
    view = stored.view(table.table_schema)
    return {view.file_path(entry) for entry in stored.newest_files().entries}


def others_commit(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Have others change a table once, after a write has looked at it and before it commits."""
    fill = local_writes.fill
    left = [change]

    def filled(transaction: Transaction, rows: object) -> None:
        fill(transaction, rows)  # type: ignore[arg-type]  # whatever it is given
        if left:
            left.pop()()

    monkeypatch.setattr(local_writes, "fill", filled)


def test_write_without_retries_fits_on_what_others_committed_since_its_look(
    client: FarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(**{"commit.max-retries": "0"})
    other = kt.Table(table.stored.store, "t")
    others_commit(monkeypatch, lambda: other.delete("k = 1"))
    assert table.write([{"k": 2, "v": 2}]).snapshot_id == 3
    assert table.scan().to_pylist() == [{"k": 2, "v": 2}]


def test_write_that_cannot_be_made_leaves_nothing_that_was_under_way(
    client: FarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    before = data_files(table)
    begin, put_all = Uploads.begin, ObjectStore.put_all

    def begin_slowly(uploads: Uploads, write: Callable[[], None]) -> None:
        begin(uploads, lambda: (time.sleep(10 * client.latency_s), write())[1])

    def refuse(store: ObjectStore, files: dict[str, bytes]) -> None:
        if any("manifest" in path for path in files):
            raise DataError("Cannot write: injected fault")
        put_all(store, files)

    monkeypatch.setattr(Uploads, "begin", begin_slowly)
    monkeypatch.setattr(ObjectStore, "put_all", refuse)
    with pytest.raises(DataError, match="injected"):
        table.write([{"k": 3, "v": 3}])
    time.sleep(20 * client.latency_s)  # what is still under way has ended by then
    assert data_files(table) == before == named_files(table)


def test_upload_that_fails_is_told_by_the_write_and_commits_nothing(
    client: FarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    put = ObjectStore._close

    def fails(store: ObjectStore, writer: object, path: str) -> None:
        if "/data-" in path:
            raise DataError(f"Cannot write {path}: injected fault")
        put(store, writer, path)  # type: ignore[arg-type]  # as it was given

    monkeypatch.setattr(ObjectStore, "_close", fails)
    with pytest.raises(DataError, match="injected"):
        table.write([{"k": 4, "v": 4}])
    assert len(table.snapshots()) == 1
    assert table.verify().is_healthy


def test_buckets_of_one_name_at_two_endpoints_are_two_lakes() -> None:
    one, two = (
        ObjectStore("s3://b", "lake/t", (("endpoint", url),)) for url in ("http://a", "http://b")
    )
    assert one.uri == two.uri
    assert last_seen(one).lineage is not last_seen(two).lineage
    assert (
        last_seen(one).lineage
        is last_seen(ObjectStore(one.bucket, one.prefix, one.options)).lineage
    )


def test_file_is_read_with_the_credentials_of_who_reads_it_now() -> None:
    table = new_table()
    table.write([{"k": n, "v": n} for n in range(3)])
    (path, *_) = data_files(table)
    store = table.stored.store
    assert isinstance(store, ObjectStore)
    for token in ("old", "new"):
        reader = ObjectStore(store.bucket, store.prefix, (("token", token),))
        found = remote_file(reader, path, None, 1 << 20)
        assert found.store == reader
        assert remote_file(reader, path, None, 1 << 20).store == reader
        assert found.footer.num_rows
