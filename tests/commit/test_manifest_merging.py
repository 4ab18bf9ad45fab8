"""However manifests are merged, the files of every snapshot are those of a dict."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.commit.committer import Committed, Committer
from keytide.commit.snapshot_files import MergeRules, Rewrite, pick
from keytide.format import paths
from keytide.format.binary_row import encode_rows
from keytide.format.checksum import SEAL_KEY
from keytide.format.manifest import ManifestFileMeta, decode_manifest, summarize
from keytide.format.manifest_entry import DataFileMeta, FileKind, Identity, ManifestEntry
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.format.stats import EMPTY_STATS
from keytide.maintenance.repair import MergedManifests, compact_manifest
from keytide.snapshot.live_files import load_live_files
from keytide.snapshot.metadata import TableMetadata
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from keytide.types import parse_sql_type
from keytide.write.bucket_writer import restamp
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult
from new_tables import empty_store
from overtaking import overtaken

PARTITION = parse_sql_type("INT")
PARTITIONS = encode_rows([pa.array([1, 2, None], pa.int32())], [PARTITION])
SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int64())])


def data_file(number: int) -> ManifestEntry:
    file = DataFileMeta(
        file_name=f"data-{number}.parquet",
        file_size=100,
        row_count=1,
        min_key=b"",
        max_key=b"",
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        min_sequence_number=number,
        max_sequence_number=number,
        schema_id=0,
        level=0,
        value_stats_cols=("k",) if number % 2 else None,
        extra_files=("x",) * (number % 3),
    )
    return ManifestEntry(FileKind.ADD, PARTITIONS[number % 3], number % 2, 2, file)


def deletion(entry: ManifestEntry) -> ManifestEntry:
    return replace(entry, kind=FileKind.DELETE)


@dataclass(frozen=True)
class Step:
    """A commit: how many files it adds, which of the live ones it deletes, and which it lifts."""

    adds: int
    deletes: tuple[int, ...] = ()
    lifts: tuple[int, ...] = ()
    foreign: bool = False
    """Whether its manifest is taken for that of another writer."""


PLACES = st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple)
STEPS = st.lists(
    st.builds(Step, st.integers(0, 4), PLACES, PLACES, st.booleans()), min_size=1, max_size=40
)
OPTIONS = st.fixed_dictionaries(
    {
        "manifest.merge-min-count": st.integers(2, 30).map(str),
        "manifest.target-file-size": st.sampled_from(["1 b", "1100 b", "2 kb", "8 mb"]),
        "manifest.full-compaction-threshold-size": st.sampled_from(["0 b", "3 kb", "16 mb"]),
    }
)


class History:
    """A table of files that nobody wrote, and a dict of what they are to be after each commit."""

    def __init__(self, options: dict[str, str], store: Store | None = None) -> None:
        self.store = store or empty_store()
        lake = kt.connect("", store=self.store)
        self.table = lake.create_table("t", SCHEMA, ["p", "k"], ["p"], {"bucket": "2", **options})
        self.live: dict[Identity, ManifestEntry] = {}
        self.states: dict[int, list[ManifestEntry]] = {}
        self.changes: dict[int, list[ManifestEntry]] = {}
        self._made = 0

    @property
    def metadata(self) -> TableMetadata:
        return self.table.metadata

    def take(self, step: Step) -> None:
        entries = self.entries(step)
        if not entries:
            return
        snapshot = self.commit(entries)
        for entry in entries:
            if entry.kind is FileKind.DELETE:
                del self.live[entry.identity]
        self.live |= {e.identity: e for e in entries if e.kind is FileKind.ADD}
        self.states[snapshot.id] = list(self.live.values())
        self.changes[snapshot.id] = entries
        if step.foreign:
            self.pass_for_foreign(self.metadata.delta_manifests(snapshot)[0])

    def entries(self, step: Step) -> list[ManifestEntry]:
        live = list(self.live.values())
        gone = [live[place] for place in step.deletes if place < len(live)]
        risen = [live[p] for p in step.lifts if p < len(live) and p not in step.deletes]
        new = [data_file(self._made + number) for number in range(step.adds)]
        self._made += step.adds
        above = [replace(e, file=replace(e.file, level=e.file.level + 1)) for e in risen]
        return [*map(deletion, [*gone, *risen]), *above, *new]

    def commit(self, entries: list[ManifestEntry]) -> Snapshot:
        change = Change(
            TaskResult(tuple(entries)), Author.fresh(), CommitKind.APPEND, renumbers=False
        )
        committer = Committer(self.metadata, writable_view(self.table.stored), restamp)
        known = load_live_files(self.metadata, self.metadata.latest_snapshot())
        committed = committer.publish(change, known)
        assert isinstance(committed, Committed)
        return committed.snapshot

    def pass_for_foreign(self, manifest: ManifestFileMeta) -> None:
        path = paths.manifest_path(manifest.file_name)
        data = self.metadata.store.read(path).replace(SEAL_KEY.encode(), SEAL_KEY.upper().encode())
        self.metadata.store.delete([path])
        self.metadata.store.put(path, data)


def stored_entries(store: Store, manifest: ManifestFileMeta) -> list[ManifestEntry]:
    """The entries as a reader finds them who knows nothing of seals."""
    data = store.read(paths.manifest_path(manifest.file_name))
    return decode_manifest(data.replace(SEAL_KEY.encode(), SEAL_KEY.upper().encode()), "m")


@pytest.mark.takes_turns
@given(OPTIONS, STEPS)
def test_files_of_every_snapshot_are_those_of_a_dict(
    options: dict[str, str], steps: list[Step]
) -> None:
    history = History(options)
    for step in steps:
        history.take(step)
    metadata = history.metadata
    for number, expected in history.states.items():
        snapshot = metadata.snapshot(number)
        delta = metadata.delta_manifests(snapshot)
        changed = [entry for m in delta for entry in stored_entries(metadata.store, m)]
        assert changed == history.changes[number]
        manifests = [*metadata.base_manifests(snapshot), *delta]
        entries = [stored_entries(metadata.store, manifest) for manifest in manifests]
        live = {e.identity: e for part in entries for e in part if e.kind is FileKind.ADD}
        for gone in [e for part in entries for e in part if e.kind is FileKind.DELETE]:
            live.pop(gone.identity, None)
        assert sorted(live.values(), key=_by_name) == sorted(expected, key=_by_name)
        assert set(load_live_files(metadata, snapshot).entries) == set(expected)
        for manifest, part in zip(manifests, entries, strict=True):
            described = summarize(part, manifest.file_name, manifest.file_size, 0, [PARTITION])
            assert manifest == described


def _by_name(entry: ManifestEntry) -> tuple[str, int]:
    return entry.file.file_name, entry.file.level


# Beside crashes and other writers

MERGING = {"manifest.merge-min-count": "2"}


def merging_history(store: Store | None = None) -> tuple[History, Step]:
    """A history whose next commit merges manifests, with pairs to cancel, and that commit."""
    history = History(MERGING, store)
    for step in (Step(2), Step(2, deletes=(0,), foreign=True), Step(1, lifts=(1,))):
        history.take(step)
    return history, Step(1, deletes=(2,))


def writes_of_a_merging_commit() -> int:
    store = FaultyStore(empty_store())
    history, step = merging_history(store)
    before = len(store.log)
    history.take(step)
    written = [path for what, path in store.log[before:] if what in ("put", "create", "hint")]
    # What the commit changed, what it merged, two lists, the snapshot and the hint.
    assert len(written) == 6
    return len(written)


@pytest.mark.parametrize("nth", range(1, writes_of_a_merging_commit() + 1))
def test_crash_at_any_write_of_a_merging_commit_loses_nothing(nth: int) -> None:
    store = empty_store()
    history, step = merging_history(store)
    entries = history.entries(step)
    change = Change(TaskResult(tuple(entries)), Author.fresh(), renumbers=False)
    fault = Fault("write", nth=nth, action="crash")
    faulty = TableMetadata(FaultyStore(history.metadata.store, [fault]), "t")
    known = load_live_files(faulty, faulty.latest_snapshot())
    with pytest.raises(Crash):
        Committer(faulty, writable_view(history.table.stored), restamp).publish(change, known)
    metadata = TableMetadata(history.metadata.store, "t")
    latest = metadata.latest_snapshot()
    assert latest is not None
    is_committed = latest.id not in history.states
    assert is_committed is (nth == writes_of_a_merging_commit())
    for number, files in history.states.items():
        assert set(load_live_files(metadata, metadata.snapshot(number)).entries) == set(files)
    if not is_committed:
        history.take(step)
        newest = load_live_files(metadata, metadata.latest_snapshot())
        assert set(newest.entries) == set(history.live.values())


def test_loser_of_a_race_merges_anew_what_the_winner_committed() -> None:
    history, _ = merging_history()
    winner, loser = data_file(100), data_file(101)
    stored = history.table.stored
    late = overtaken(history.table, lambda: history.commit([winner])).metadata
    committer = Committer(late, writable_view(stored), restamp)
    known = load_live_files(late, late.latest_snapshot())
    change = Change(TaskResult((loser,)), Author.fresh(), renumbers=False)
    assert isinstance(committer.publish(change, known), Committed)
    newest = load_live_files(history.metadata, history.metadata.latest_snapshot())
    assert set(newest.entries) == {*history.live.values(), winner, loser}
    named = {m.file_name for m in manifests_of_all_snapshots(history.metadata)}
    stored_names = history.metadata.store.list_names("manifest")
    assert {n for n in stored_names if not n.startswith("manifest-list")} == named


def manifests_of_all_snapshots(metadata: TableMetadata) -> list[ManifestFileMeta]:
    snapshots = map(metadata.snapshot, metadata.snapshot_ids())
    return [
        manifest
        for snapshot in snapshots
        for manifest in (*metadata.base_manifests(snapshot), *metadata.delta_manifests(snapshot))
    ]


# What is picked


def manifest(text: str) -> ManifestFileMeta:
    """A manifest such as `7`, of that size and as many files, or `7-`, which deletes one too."""
    size, deletes = int(text.rstrip("-")), text.count("-")
    return ManifestFileMeta("m", size, size - deletes, deletes, EMPTY_STATS, 0)


@pytest.mark.parametrize(
    ("sizes", "places", "is_full"),
    [
        ("", "", False),
        ("1 1", "", False),
        ("1 1 1", "0 1 2", False),
        ("9 1 1 1", "1 2 3", False),
        ("9 1 1", "", False),
        ("200 1 1 1", "1 2 3", False),
        ("60 60", "0 1", False),
        ("60 200 60", "", False),
        ("99 1 1 1", "0 1", False),
        ("200- 60 200 70", "0 1 3", True),
        ("100- 60 200 70", "", False),
        ("300- 1", "0 1", True),
        ("90 200 90 300 90 90", "0 2 4 5", True),
        ("300", "", False),
        ("99 300 99 300 99 300 99", "", False),
    ],
)  # fmt: skip
def test_manifests_that_are_merged(sizes: str, places: str, is_full: bool) -> None:
    rules = MergeRules(count_min=3, target_bytes=100, full_bytes=300)
    expected = Rewrite(tuple(map(int, places.split())), is_full)
    assert pick([manifest(size) for size in sizes.split()], rules) == expected


def test_procedure_merges_manifests_and_changes_no_file() -> None:
    history = History({})
    for step in (Step(2), Step(2, deletes=(0,)), Step(1, lifts=(1,)), Step(1)):
        history.take(step)
    lake = kt.connect("", store=history.store)
    call = "CALL sys.compact_manifest('t')"
    assert lake.sql(call).to_pylist() == [
        {"snapshot_id": 5, "manifests_before": 4, "manifests_after": 1}
    ]
    snapshot = history.metadata.snapshot(5)
    assert snapshot.commit_kind is CommitKind.COMPACT
    assert not history.metadata.delta_manifests(snapshot)
    (merged,) = history.metadata.base_manifests(snapshot)
    assert (merged.num_added_files, merged.num_deleted_files) == (len(history.live), 0)
    for number, files in {**history.states, 5: list(history.live.values())}.items():
        found = load_live_files(history.metadata, history.metadata.snapshot(number))
        assert set(found.entries) == set(files)
    again = lake.sql(call).to_pylist()
    assert again == [{"snapshot_id": None, "manifests_before": 1, "manifests_after": 1}]


def test_procedure_has_nothing_to_merge_in_a_table_without_snapshots() -> None:
    history = History({})
    assert compact_manifest(history.table.stored) == MergedManifests(None, 0, 0)


@pytest.mark.parametrize(("writes", "merged_by_compaction"), [(5, False), (6, True), (8, True)])
def test_compaction_merges_manifests_at_two_thirds_of_the_count_of_a_write(
    writes: int, merged_by_compaction: bool
) -> None:
    options = {"manifest.merge-min-count": "9", "bucket": "1", "compaction.background": "false"}
    lake = kt.connect("", store=empty_store())
    table = lake.create_table("t", SCHEMA, ("k",), options={**options, "write-only": "true"})
    for key in range(writes):
        table.write([{"p": 1, "k": key}])
    metadata = table.stored.metadata
    assert len(metadata.base_manifests(metadata.snapshot(writes))) == writes - 1
    compacted = table.compact(full=True).snapshot_id
    base = metadata.base_manifests(metadata.snapshot(compacted))
    assert len(base) == (1 if merged_by_compaction else writes)
