"""Publishing beside everything that can go wrong: faults, other publishers, expiry, refusals."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import StaticTable
from pyiceberg.table.puffin import PuffinFile

import keytide as kt
from keytide.definition.schema_evolution import DropColumn, RenameColumn
from keytide.format.cache import forget_files
from keytide.format.delta_log import LOG_DIR
from keytide.format.iceberg_metadata import METADATA_DIR, VERSION_HINT
from keytide.publish import delta as publishing_delta
from keytide.publish import publish as publishing
from keytide.publish.delta import CHECKPOINT_INTERVAL
from keytide.publish.form import forget_publications, recall, remember
from keytide.snapshot.lineage import forget_lineages
from keytide.store import open_store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from new_tables import table_in
from other_readers import ICEBERG_3, READERS, Rows, iceberg_table, published_as, scanned
from row_ids import row_ids
from stops import faults_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
HIGHEST_ID_OF_ICEBERG = 2147483447
"""Ids above are not those of columns."""
FOLDERS = {"delta": LOG_DIR, "iceberg": METADATA_DIR}
EVERY = {**FOLDERS, ICEBERG_3: METADATA_DIR}
"""The forms, also in the other version of Iceberg's format."""


def row(k: int, v: str) -> dict[str, Any]:
    return {"k": k, "v": v}


def lake_in(folder: Path, *faults: Fault) -> tuple[kt.Lake, FaultyStore]:
    store = FaultyStore(open_store(str(folder)), faults)
    return kt.connect("", store=store), store


def new_table(folder: Path, form: str, **options: str) -> kt.Table:
    """A table with an index of keys, three rows, and one of them dead."""
    every = {"upsert.mode": "full", **published_as(form)} | options
    table = kt.connect(str(folder)).create_table("t", SCHEMA, ["k"], options=every)
    table.write([row(k, "old") for k in range(3)])
    table.write([row(0, "new")])
    return table


def as_a_new_process() -> None:
    forget_files()
    forget_lineages()
    forget_publications()


def read_by_all(table: kt.Table, form: str) -> Rows:
    """What all readers of a form find, who agree."""
    (rows, *others) = READERS[form](table).values()
    assert all(other == rows for other in others)
    return rows


def published(table: kt.Table) -> dict[str, Any]:
    (found,) = table.publish()
    return {"snapshot": found.snapshot_id, "newest": found.newest_snapshot_id,
            "reason": found.reason}  # fmt: skip


def files_of(table: kt.Table) -> set[str]:
    return {info.path for info in table.metadata.store.list()}


def make_old(folder: Path) -> None:
    """Have all files been changed last two days ago."""
    then = time.time() - 2 * 86_400
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


# -- faults ----------------------------------------------------------------------------------------


class Beginning:
    """A table as `made` leaves it, at the same path each time: Iceberg's files name it."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder, self.kept, self.form = folder / "lake", folder / "kept", form
        self.table = new_table(self.folder, form)
        self.rows = read_by_all(self.table, form)
        shutil.copytree(self.folder, self.kept)
        self.published, self.files = self.publication(), files_of(self.table)

    def again(self) -> None:
        """In a new process."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)
        as_a_new_process()
        self.table = kt.connect(str(self.folder)).table("t")

    def publication(self) -> dict[str, bytes]:
        """All that readers of the form look for first."""
        folder = Path(self.table.metadata.store.uri) / EVERY[self.form]
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def seen(self) -> Rows:
        """What readers find, who find in the same files what they found."""
        is_same = self.publication() == self.published and self.files <= files_of(self.table)
        return self.rows if is_same else read_by_all(self.table, self.form)

    def faults(self, action: Action) -> list[Fault]:
        """One for each request of the publication that follows a write."""
        self.again()
        lake, store = lake_in(self.folder)
        lake.table("t").write([row(1, "newer")])
        first = next(n for n, (_, path) in enumerate(store.log) if is_of(self.form, path))
        counts: Counter[str] = Counter()
        places = []
        for number, (operation, path) in enumerate(store.log):
            counts[operation] += 1
            # Stores replace a file that is there in one step.
            is_replaced = action == "torn" and path.endswith(VERSION_HINT)
            if number >= first and not is_replaced:
                places.append((operation, counts[operation]))
        return [
            Fault(operation, nth=nth, action=action)  # type: ignore[arg-type]
            for operation, nth, _ in faults_of(places, action)
        ]


def is_of(form: str, path: str) -> bool:
    return f"/{EVERY[form]}" in path


@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize("action", ["fail", "lost-response", "torn", "crash"])
def test_publication_that_fails_anywhere_is_caught_up_by_the_next(
    form: str, action: Action, tmp_path: Path
) -> None:
    beginning = Beginning(tmp_path, form)
    faults = beginning.faults(action)
    assert faults
    for fault in faults:
        beginning.again()
        table = beginning.table
        lake, _ = lake_in(beginning.folder, fault)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kt.KeytideWarning)
            try:
                lake.table("t").write([row(1, "newer")])
            except Crash:
                assert action == "crash"
        assert (1, "newer") in scanned(table), "what is published never undoes a commit"
        assert beginning.seen() in (beginning.rows, scanned(table))
        as_a_new_process()
        table.write([row(2, "newest")])
        assert read_by_all(table, form) == scanned(table)
        assert published(table)["reason"] is None


@pytest.mark.parametrize("form", FOLDERS)
def test_publication_that_fails_is_a_warning_and_the_rows_are_written(
    form: str, tmp_path: Path
) -> None:
    table = new_table(tmp_path, form)
    lake, _ = lake_in(tmp_path, Fault("create", f"*/{EVERY[form]}/*"))
    with pytest.warns(kt.KeytideWarning, match=r"publishing it failed.*Table\.publish"):
        lake.table("t").write([row(1, "newer")])
    assert scanned(table) == [(0, "new"), (1, "newer"), (2, "old")]
    assert read_by_all(table, form) != scanned(table)
    assert published(table)["snapshot"] == 3
    assert read_by_all(table, form) == scanned(table)


# -- other publishers ------------------------------------------------------------------------------


class Overtaken(FaultyStore):
    """A store in which somebody else publishes just before a version is made."""

    def __init__(self, folder: Path, form: str, others: list[Callable[[], object]]) -> None:
        super().__init__(open_store(str(folder)))
        self.form, self.others = form, others

    def create(self, path: str, data: bytes) -> bool:
        if is_of(self.form, self._prefix + path) and self.others:
            self.others.pop()()
        return super().create(path, data)


@pytest.mark.parametrize("form", EVERY)
def test_publisher_who_is_overtaken_looks_again_and_never_goes_back(
    form: str, tmp_path: Path
) -> None:
    table = new_table(tmp_path, form)
    store = Overtaken(tmp_path, form, [lambda: table.write([row(7, "by another")])])
    slow = table_in(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slow.write([row(1, "newer")])
    assert not store.others
    assert (7, "by another") in read_by_all(table, form)
    assert read_by_all(table, form) == scanned(table)
    assert published(table)["snapshot"] == 4


@pytest.mark.parametrize("form", EVERY)
def test_snapshot_that_expires_while_it_is_published_makes_room_for_the_newest(
    form: str, tmp_path: Path
) -> None:
    new_table(tmp_path, form)
    unable = Fault("create", f"*/{EVERY[form]}/*", times=9)

    def replace_all() -> None:
        """Another writer's rows, which it fails to publish, and the end of all before them."""
        other = lake_in(tmp_path, unable)[0].table("t")
        with pytest.warns(kt.KeytideWarning, match="publishing it failed"):
            other.overwrite([row(7, "by another")])
        other.expire_snapshots(retain_max=1, retain_min=1)

    store = Overtaken(tmp_path, form, [replace_all])
    table = table_in(store)
    table.write([row(1, "newer")])
    assert not store.others
    assert read_by_all(table, form) == scanned(table) == [(7, "by another")]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("form", FOLDERS)
def test_publications_of_two_processes_alternate(form: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, form)
    other = lake_in(tmp_path)[0].table("t")
    for number in range(6):
        (table, other)[number % 2].write([row(number % 3, f"{number}")])
        assert read_by_all(table, form) == scanned(table)


@pytest.mark.parametrize("form", EVERY)
def test_publication_begins_anew_where_somebody_removed_it(form: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, form)
    table.metadata.store.delete_tree(EVERY[form])
    table.write([row(1, "newer")])
    assert read_by_all(table, form) == scanned(table)


@pytest.mark.parametrize("form", FOLDERS)
def test_table_made_anew_at_the_same_place_is_published_as_itself(
    form: str, tmp_path: Path
) -> None:
    new_table(tmp_path, form)
    kt.connect(str(tmp_path)).drop_table("t")
    table = new_table(tmp_path, form)
    assert read_by_all(table, form) == scanned(table)


@pytest.mark.parametrize("form", FOLDERS)
def test_table_that_others_made_anew_is_read_anew(form: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, form)
    known = recall(table.stored.store, form)
    kt.connect(str(tmp_path)).drop_table("t")
    forget_publications()
    table = new_table(tmp_path, form)
    for number in range(6):
        table.write([row(number, "by another")])
    remember(table.stored.store, form, known)
    table.write([row(1, "newest")])
    assert read_by_all(table, form) == scanned(table)
    if form == "delta":
        found = deltalake.DeltaTable(table.uri)
        assert {each["tableId"] for each in found.history()} == {found.metadata().id}


@pytest.mark.parametrize("form", FOLDERS)
def test_commit_that_is_told_late_takes_nothing_back(form: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, form)
    table.write([row(1, "newest")])
    stored = table.stored
    publishing.publish_after(stored, stored.view(stored.schema), 2)
    assert read_by_all(table, form) == scanned(table)


# -- what cannot be published ----------------------------------------------------------------------

MERGED = {"upsert.mode": "none", "bucket": "1"}


@pytest.mark.parametrize("form", FOLDERS)
def test_last_publication_stays_until_nothing_has_to_be_merged(form: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, form, **MERGED)
    assert published(table) == {"snapshot": None, "newest": 2, "reason": table.publish()[0].reason}
    table.compact(full=True)
    first = scanned(table)
    assert read_by_all(table, form) == first
    table.write([row(1, "newer")])
    assert published(table)["snapshot"] == 3
    assert "bucket-0" in str(published(table)["reason"])
    assert read_by_all(table, form) == first
    sign = next(sign for sign in table.doctor().signs if sign.subject == "publishing")
    assert f"{form} shows snapshot 3 of 4" in sign.found
    assert "compact(full=True)" in (sign.action or "")
    table.compact(full=True)
    assert read_by_all(table, form) == scanned(table)


@pytest.mark.parametrize("form", EVERY)
def test_expiry_and_orphan_removal_keep_what_is_published(form: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, form, **MERGED)
    table.compact(full=True)
    first = read_by_all(table, form)
    table.write([row(1, "newer")])
    lake, _ = lake_in(tmp_path, Fault("create", f"*/{EVERY[form]}/*"))
    with pytest.warns(kt.KeytideWarning, match="publishing it failed"):
        lake.table("t").compact(full=True)  # the files that are published go
    table.write([row(1, "newest")])
    assert published(table)["snapshot"] == 3
    table.expire_snapshots(retain_max=1, retain_min=1)
    make_old(tmp_path)
    table.remove_orphan_files(dry_run=False)
    assert [each.id for each in table.snapshots()] == [table.metadata.latest_snapshot_id()]
    assert read_by_all(table, form) == first
    table.compact(full=True)
    assert read_by_all(table, form) == scanned(table)


@pytest.mark.parametrize("form", EVERY)
def test_what_a_publisher_left_who_died_is_an_orphan_and_what_any_version_names_is_none(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing_delta, "_INLINE_BYTES_MAX", 0)
    table = new_table(tmp_path, form)
    named, before = files_of(table), read_by_all(table, form)
    lake, _ = lake_in(tmp_path, Fault("create", f"*/{EVERY[form]}/*.json", action="crash"))
    with pytest.raises(Crash):
        lake.table("t").delete("k = 1")
    written_before_a_version = ("metadata/", "_delta_vectors/")
    left = {path for path in files_of(table) - named if path.startswith(written_before_a_version)}
    assert left
    as_a_new_process()
    assert not table.remove_orphan_files().paths, "it may be at work still"
    make_old(tmp_path)
    assert {*table.remove_orphan_files().paths} == left
    assert read_by_all(table, form) == before
    table.publish()
    make_old(tmp_path)
    assert {*table.remove_orphan_files(dry_run=False).paths} == left
    assert named <= files_of(table), "older versions are there, and whole"
    assert read_by_all(table, form) == scanned(table)


@pytest.mark.parametrize(
    ("column", "options", "said"),
    [
        (pa.field("x", pa.timestamp("ns")), {}, r"column 'x' is TIMESTAMP\(9\)"),
        (pa.field("x", pa.time32("ms")), {}, r"column 'x' is TIME\(3\)"),
        (pa.field("x", pa.struct([("t", pa.time32("ms"))])), {}, "column 'x' is ROW"),
        (pa.field("v", pa.string()), {"file.format": "orc"}, r"'file\.format' = 'orc'"),
        (pa.field("v", pa.string()), {"fields.v.default-value": "a"}, "column 'v' has a 'fields"),
    ],
)
@pytest.mark.parametrize("form", FOLDERS)
def test_table_that_others_would_read_otherwise_is_refused_by_name(
    form: str, column: pa.Field, options: dict[str, str], said: str, tmp_path: Path
) -> None:
    lake = kt.connect(str(tmp_path))
    schema = pa.schema([pa.field("k", pa.int64()), column])
    with pytest.raises((kt.UnsupportedError, kt.InvalidError), match=said):
        lake.create_table("t", schema, ["k"], options={**options, "publish": form})
    table = lake.create_table("t", schema, ["k"], options=options)
    with pytest.raises((kt.UnsupportedError, kt.InvalidError), match=said):
        lake.sql(f"ALTER TABLE t SET ('publish' = '{form}')")
    assert "publish" not in table.options


def test_two_writers_of_icebergs_metadata_are_refused(tmp_path: Path) -> None:
    lake = kt.connect(str(tmp_path))
    options = {"publish": "iceberg", "metadata.iceberg.storage": "table-location"}
    with pytest.raises(kt.UnsupportedError, match=r"'metadata\.iceberg\.storage' = 'table-loc"):
        lake.create_table("t", SCHEMA, ["k"], options=options)


def test_name_that_delta_has_no_room_for_is_refused(tmp_path: Path) -> None:
    lake = kt.connect(str(tmp_path))
    schema = pa.schema([("a b", pa.int64())])
    with pytest.raises(kt.UnsupportedError, match=r"column 'a b' .* its name has ' '"):
        lake.create_table("t", schema, [], options={"publish": "delta"})


@pytest.mark.parametrize("form", FOLDERS)
def test_snapshot_with_a_column_that_went_since_waits_for_the_next(
    form: str, tmp_path: Path
) -> None:
    lake = kt.connect(str(tmp_path))
    schema = pa.schema([*SCHEMA, ("t", pa.time32("ms"))])
    table = lake.create_table("t", schema, ["k"], options={"upsert.mode": "full"})
    table.write([{"k": 1, "v": "a", "t": None}])
    table.alter(DropColumn(("t",)))
    lake.sql(f"ALTER TABLE t SET ('publish' = '{form}')")
    assert "column 't' is TIME(3)" in str(published(table)["reason"])
    table.write([row(2, "b")])
    if form == "iceberg":  # whose readers look at all columns of a file
        assert "column 't' was dropped" in str(published(table)["reason"])
        table.compact(full=True)
    assert read_by_all(table, form) == scanned(table)


def test_publish_tells_readers_of_a_version_whose_publisher_died_before_it_told_them(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path, "iceberg")
    hint = Path(table.uri, VERSION_HINT)
    newest = hint.read_text()
    hint.write_text("1")
    as_a_new_process()
    table.publish()
    assert hint.read_text() == newest != "1"
    assert "new" in str(read_by_all(table, "iceberg"))


@pytest.mark.parametrize("form", FOLDERS)
@pytest.mark.parametrize("others", [False, True], ids=["same process", "another process"])
def test_rolled_back_snapshot_is_not_taken_for_another_one_with_its_id(
    form: str, others: bool, tmp_path: Path
) -> None:
    lake = kt.connect(str(tmp_path))
    table = lake.create_table("t", SCHEMA, ["k"], options=published_as(form))
    table.write([row(0, "a")])
    table.write([row(0, "b")])
    table.write([row(9, "rolled back")])
    table.compact(full=True)  # 4, which is published
    table.rollback_to(2)
    if others:
        as_a_new_process()
    for k in (1, 2):
        table.write([row(k, "c")])  # 4 again, which must be merged
    (told,) = lake.sql("SELECT * FROM `t$publications`").to_pylist()
    assert "must be merged" in told["reason"]
    assert "must be merged" in published(table)["reason"]
    table.compact(full=True)
    assert published(table)["reason"] is None
    assert "rolled back" not in str(read_by_all(table, form))


def test_publish_says_what_it_lacks(tmp_path: Path) -> None:
    lake = kt.connect(str(tmp_path))
    table = lake.create_table("t", SCHEMA, ["k"])
    with pytest.raises(
        kt.InvalidError, match=r"table default\.t does not set 'publish'; set it to 'del"
    ):
        table.publish()
    lake.sql("ALTER TABLE t SET ('publish' = 'delta')")
    assert table.publish()[0].reason == "the table has no snapshots"
    table.write([row(1, "a")])
    table.create_branch("b")
    with pytest.raises(kt.InvalidError, match="is a branch"):
        table.branch("b").publish()


@pytest.mark.parametrize("form", FOLDERS)
def test_branch_is_published_once_the_table_is_forwarded_to_it(form: str, tmp_path: Path) -> None:
    table = new_table(tmp_path, form)
    before = read_by_all(table, form)
    table.create_branch("b")
    table.branch("b").write([row(1, "on the branch")])
    assert read_by_all(table, form) == before
    table.fast_forward("b", discard=True)
    assert read_by_all(table, form) == scanned(table) != before


@pytest.mark.parametrize("form", FOLDERS)
def test_table_that_is_published_no_more_shows_what_it_showed(form: str, tmp_path: Path) -> None:
    lake = kt.connect(str(tmp_path))
    table = new_table(tmp_path, form)
    before = read_by_all(table, form)
    lake.sql("ALTER TABLE t RESET ('publish')")
    for number in range(3):
        table.write([row(k, f"{number}") for k in range(3)])
        table.compact(full=True)
    table.expire_snapshots(retain_max=1, retain_min=1)
    assert read_by_all(table, form) == before
    (told,) = lake.sql("SELECT * FROM `t$publications`").to_pylist()
    assert (told["snapshot_id"], told["is_stopped"]) == (2, True)
    lake.sql(f"ALTER TABLE t SET ('publish' = '{form}')")
    table.publish()
    assert read_by_all(table, form) == scanned(table) != before


@pytest.mark.parametrize("form", EVERY)
def test_table_whose_folder_moved_is_published_where_it_is(form: str, tmp_path: Path) -> None:
    new_table(tmp_path / "before", form)
    (tmp_path / "before").rename(tmp_path / "after")
    as_a_new_process()
    table = kt.connect(str(tmp_path / "after")).table("t")
    table.publish()
    assert read_by_all(table, form) == scanned(table)


# -- versions of Iceberg's format ------------------------------------------------------------------

CHANGE_VERSION = "ALTER TABLE t SET ('publish.iceberg.format-version' = '{}')"


def test_published_table_goes_on_in_a_newer_version_and_its_rows_get_ids(tmp_path: Path) -> None:
    table = new_table(tmp_path, "iceberg")
    before = iceberg_table(table).metadata
    kt.connect(str(tmp_path)).sql(CHANGE_VERSION.format(3))
    table.publish()
    after = iceberg_table(table).metadata
    assert (before.format_version, after.format_version) == (2, 3)
    assert (after.table_uuid, after.snapshots[0].snapshot_id) == (before.table_uuid, 3)
    assert sorted(number for ids in row_ids(table).values() for number in ids) == [*range(4)]
    assert read_by_all(table, ICEBERG_3) == scanned(table)
    deletes = [entry.file_path for entry in deletes_of(table)]
    assert [Path(path).suffix for path in deletes] == [".puffin"]
    assert not table.publish()[0].reason
    assert iceberg_table(table).metadata == after, "there was nothing more to say"


def test_no_table_goes_back_to_an_older_version_but_another_one_begins(tmp_path: Path) -> None:
    table = new_table(tmp_path, ICEBERG_3)
    before = iceberg_table(table).metadata
    kt.connect(str(tmp_path)).sql("ALTER TABLE t RESET ('publish.iceberg.format-version')")
    as_a_new_process()
    table.publish()
    after = iceberg_table(table).metadata
    assert (before.format_version, after.format_version) == (3, 2)
    assert after.table_uuid != before.table_uuid
    assert after.last_sequence_number > before.last_sequence_number, "readers find it by number"
    assert read_by_all(table, "iceberg") == scanned(table)
    assert [Path(each.file_path).suffix for each in deletes_of(table)] == [".parquet"]


def test_writer_that_began_before_the_version_changed_does_not_change_it_back(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path, "iceberg")
    stored = table.stored
    as_it_was = stored.view(stored.schema)
    kt.connect(str(tmp_path)).sql(CHANGE_VERSION.format(3))
    table.write([row(1, "newest")])
    publishing.publish_after(stored, as_it_was, 3)
    assert iceberg_table(table).metadata.format_version == 3
    assert read_by_all(table, ICEBERG_3) == scanned(table)


def test_version_is_that_of_the_branch_to_which_the_table_was_forwarded(tmp_path: Path) -> None:
    table, lake = new_table(tmp_path, "iceberg"), kt.connect(str(tmp_path))
    table.create_branch("b")
    lake.sql(CHANGE_VERSION.format(3))
    table.write([row(1, "newest")])
    table.branch("b").write([row(1, "on the branch")])
    table.fast_forward("b", discard=True)
    assert iceberg_table(table).metadata.format_version == 2
    assert read_by_all(table, "iceberg") == scanned(table)


def test_file_keeps_its_row_ids_and_rows_that_are_written_anew_get_others(tmp_path: Path) -> None:
    table = new_table(tmp_path, ICEBERG_3)
    first = row_ids(table)
    as_a_new_process()
    table.write([row(2, "newer")])
    second = row_ids(table)
    assert first.items() <= second.items()
    table.compact(full=True)
    (ids,) = row_ids(table).values()
    assert ids.start == max(each.stop for each in second.values())
    assert read_by_all(table, ICEBERG_3) == scanned(table)


def test_dead_rows_of_a_bucket_are_one_file_with_a_vector_for_each_data_file(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path, ICEBERG_3)
    table.write([row(0, "newer"), row(1, "newer")])
    deletes = deletes_of(table)
    assert len({each.file_path for each in deletes}) == 1
    assert sorted(each.record_count for each in deletes) == [1, 2]
    folder = Path(table.uri.removeprefix("file://"), METADATA_DIR)
    puffin = PuffinFile(folder.joinpath(Path(deletes[0].file_path).name).read_bytes())
    assert sorted(int(blob.properties["cardinality"]) for blob in puffin.footer.blobs) == [1, 2]
    assert read_by_all(table, ICEBERG_3) == scanned(table)


def test_version_that_iceberg_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kt.InvalidError, match=r"'publish\.iceberg\.format-version' .*'4'.*2, 3"):
        new_table(tmp_path, "iceberg 4")


def deletes_of(table: kt.Table) -> list[DataFile]:
    """What the manifests tell of deletes, in the order of the vectors."""
    found = iceberg_table(table)
    snapshot = found.current_snapshot()
    assert snapshot is not None
    return [
        entry.data_file
        for manifest in snapshot.manifests(found.io)
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(found.io)
    ]


# -- what is peculiar to Delta ---------------------------------------------------------------------


def test_log_is_summed_up_and_read_from_there(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    for number in range(CHECKPOINT_INTERVAL + 3):
        table.write([row(number % 4, f"{number}")])
    names = table.metadata.store.list_names(LOG_DIR)
    assert f"{CHECKPOINT_INTERVAL:020d}.checkpoint.parquet" in names
    for name in names:
        if name < f"{CHECKPOINT_INTERVAL:020d}":
            table.metadata.store.delete([f"{LOG_DIR}/{name}"])
    assert read_by_all(table, "delta") == scanned(table)
    as_a_new_process()
    table.delete("k = 1")
    assert read_by_all(table, "delta") == scanned(table)


def test_old_metadata_of_iceberg_go_with_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path, "iceberg")
    store = table.metadata.store
    first = {*store.list_names(METADATA_DIR)}
    later_ms = time.time_ns() // 10**6 + 2 * 3_600_000
    monkeypatch.setattr(publishing, "wall_clock_ms", lambda: later_ms)
    for number in range(25):
        table.write([row(number % 4, f"{number}")])
    left = {*store.list_names(METADATA_DIR)}
    # Manifests of data files are named until many of them are put together.
    gone = {name for name in first if not name.endswith(("-m0.avro", ".text"))}
    assert gone
    assert not left & gone
    named = [name for name in left if name.startswith("v") and name.endswith(".json")]
    assert len(named) == 8, "those since the last one that was old"
    assert read_by_all(table, "iceberg") == scanned(table)


def test_metadata_of_iceberg_know_the_ids_of_all_columns_in_files(tmp_path: Path) -> None:
    options = {"upsert.mode": "none", "deletion-vectors.enabled": "true", "bucket": "1"}
    table = new_table(tmp_path, "iceberg", **options)
    highest = StaticTable.from_metadata(table.uri).metadata.last_column_id
    ids = {
        int(field.metadata[b"PARQUET:field_id"])
        for path in tmp_path.rglob("data-*.parquet")
        for field in pq.read_schema(path)
    }
    own = {number for number in ids if number <= HIGHEST_ID_OF_ICEBERG}
    assert len(own) == 3, "the columns, and a copy of the key"
    assert max(own) <= highest < HIGHEST_ID_OF_ICEBERG


def test_version_of_delta_says_which_snapshot_it_shows(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    found = deltalake.DeltaTable(table.uri)
    assert found.transaction_version("keytide") == 2
    assert [each["snapshotId"] for each in found.history()] == [2, 1]


def test_no_column_of_delta_is_required_for_that_is_a_feature_which_spark_asks_for(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path, "delta")
    assert not table.schema.field("k").nullable
    found = deltalake.DeltaTable(table.uri)
    assert all(column.nullable for column in found.schema().fields)
    assert "invariants" not in (found.protocol().writer_features or [])


def test_writers_of_delta_are_kept_out(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    with pytest.raises(Exception, match="keytide"):
        deltalake.write_deltalake(table.uri, pa.table({"k": [9], "v": ["x"]}), mode="append")
    assert read_by_all(table, "delta") == scanned(table)


def test_column_with_another_name_in_older_files_waits_for_a_compaction(tmp_path: Path) -> None:
    table = new_table(tmp_path, "delta")
    before = read_by_all(table, "delta")
    table.alter(RenameColumn(("v",), "w"))
    table.write([{"k": 1, "w": "newer"}])
    assert published(table)["reason"] == (
        "files of schema 0 are from before column 'v' was renamed to 'w'"
    )
    assert read_by_all(table, "delta") == before
    table.compact(full=True)
    assert read_by_all(table, "delta") == scanned(table)


def test_dead_rows_below_a_folder_that_urls_spell_otherwise_wait(tmp_path: Path) -> None:
    lake = kt.connect(str(tmp_path))
    schema = pa.schema([("k", pa.int64()), ("p", pa.string())])
    options = {"upsert.mode": "full", "publish": "delta"}
    table = lake.create_table("t", schema, ["k", "p"], ["p"], options=options)
    table.write([{"k": 1, "p": "a b"}, {"k": 1, "p": "a/b=c"}, {"k": 2, "p": "a b"}])
    before = read_by_all(table, "delta")
    assert before == scanned(table)
    table.delete("k = 1")
    assert "characters that must be escaped in a URL" in str(published(table)["reason"])
    assert read_by_all(table, "delta") == before


@pytest.mark.takes_turns
def test_many_dead_rows_lie_in_a_file_that_goes_with_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path, "delta")
    table.write([row(k, "many") for k in range(200_000)])
    # Every third row, by numbers that no run is shorter for.
    table.delete("k % 3 = 1 OR k % 7 = 2")
    folder = Path(table.uri.removeprefix("file://"), "_delta_vectors")
    first = {*folder.iterdir()}
    assert len(first) == 1
    assert read_by_all(table, "delta") == scanned(table)
    table.compact(full=True)
    assert read_by_all(table, "delta") == scanned(table)
    assert {*folder.iterdir()} >= first
    later_ms = time.time_ns() // 10**6 + 2 * 3_600_000
    monkeypatch.setattr(publishing, "wall_clock_ms", lambda: later_ms)
    for number in range(2 * CHECKPOINT_INTERVAL):
        table.write([row(900_000, f"{number}")])
    names = table.metadata.store.list_names(LOG_DIR)
    assert f"{CHECKPOINT_INTERVAL - 1:020d}.json" not in names
    assert f"{2 * CHECKPOINT_INTERVAL:020d}.checkpoint.parquet" in names
    assert not {*folder.iterdir()} & first
    assert read_by_all(table, "delta") == scanned(table)
