"""Compactions beside writes, other compactions and failures; what they keep and what they leave."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from copies import copies_of
from keytide.compaction import compact as compaction
from keytide.compaction.rewrite import Ages, CompactTask
from keytide.compaction.strategy import SortedRun, Unit
from keytide.definition.schema_evolution import AddColumn, SetOption
from keytide.format.data_file import FORMATS
from keytide.format.manifest_entry import FileKind
from keytide.format.snapshot import CommitKind
from keytide.maintenance import writes as upkeep_writing
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from new_tables import dotted, empty_store, empty_table, fields_of, table_in
from overtaking import overtaken
from stops import faults_of, stops_of
from table_rows import lines, parsed, reopened, write_lines

COLUMNS = {"p": "INT NOT NULL", "k": "INT NOT NULL", "s": "INT", "v": "STRING"}
WRITE_ONLY = {"write-only": "true"}
IN_THE_WRITE = {"compaction.background": "false"}
Row = tuple[int, int, int, str]


def columns(**types: str) -> list[kt.Field]:
    return fields_of(types)


def new_table(store: Store | None = None, **options: str) -> kt.Table:
    own = dotted(options)
    return empty_table(columns(**COLUMNS), ["p", "k"], ["p"], options=own, store=store)


def levels(table: kt.Table) -> list[tuple[int, int]]:
    """Level and rows of each file."""
    files = (entry.file for entry in table.scan().live.entries)
    return sorted((file.level, file.row_count) for file in files)


def names(store: Store) -> set[str]:
    """The data files that lie in a store."""
    return {info.path.rsplit("/", 1)[-1] for info in store.list("") if "/data-" in info.path}


def live_names(table: kt.Table) -> set[str]:
    return {entry.file.file_name for entry in table.scan().live.entries}


# -- after writes ----------------------------------------------------------------------------------


@pytest.mark.takes_turns
def test_table_of_many_small_writes_has_few_files() -> None:
    table, model = new_table(bucket="2", **IN_THE_WRITE), {}
    for n in range(40):
        key = n * 7 % 11
        write_lines(table, f"+I 0 {key} 0 v{n}", f"-D 0 {key + 1} 0 x")
        model[key] = f"0 {key} 0 v{n}"
        model.pop(key + 1, None)
        assert lines(reopened(table)) == sorted(model.values())
        assert all(state.runs <= 5 for state in table.stored.newest_files().buckets.values())
    kinds = Counter(snapshot.commit_kind for snapshot in table.snapshots())
    assert kinds[CommitKind.APPEND] == 40
    assert 10 <= kinds[CommitKind.COMPACT] <= 20


def test_only_what_a_write_touched_is_compacted() -> None:
    table = new_table(**WRITE_ONLY, **IN_THE_WRITE)
    for n in range(6):
        write_lines(table, f"+I 1 1 0 v{n}", f"+I 2 1 0 v{n}")
    table.alter(SetOption("write-only", "false"))
    write_lines(table, "+I 1 1 0 v6")
    assert levels(table) == [*[(0, 1)] * 6, (5, 1)]
    assert lines(reopened(table)) == ["1 1 0 v6", "2 1 0 v5"]


@pytest.mark.parametrize("options", [WRITE_ONLY, {"num-sorted-run.compaction-trigger": "99"}])
def test_writes_leave_files_alone_that_are_not_due(options: dict[str, str]) -> None:
    table = new_table(**options)
    for n in range(12):
        write_lines(table, f"+I 0 1 0 v{n}")
    assert levels(table) == [(0, 1)] * 12


@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "aggregation", "fields.v.aggregate-function": "listagg"},
        {"merge-engine": "partial-update", "force-lookup": "true"},
    ],
)
@pytest.mark.filterwarnings("ignore::keytide.errors.KeytideWarning")
def test_files_that_must_stay_are_left_by_writes_and_refused_by_name(
    options: dict[str, str],
) -> None:
    table = new_table(**options, **{"sequence.field": "s"})
    for n in range(7):
        write_lines(table, f"+I 0 1 0 v{n}")
    assert levels(table) == [(0, 1)] * 7
    with pytest.raises(
        kt.UnsupportedError, match=r"default.t.*cannot compact it.*'sequence.field'"
    ):
        table.compact()


def test_write_whose_compaction_fails_is_a_write_with_a_warning() -> None:
    store = empty_store()
    table = new_table(store, **IN_THE_WRITE)
    for n in range(4):
        write_lines(table, f"+I 0 1 0 v{n}")
    faulty = kt.connect("", store=FaultyStore(store, [Fault("output", nth=2)])).table("t")
    with pytest.warns(
        kt.KeytideWarning, match="rows are written, but the compaction after"
    ) as told:
        result = faulty.write(parsed(faulty.schema, "+I 0 1 0 v4"))
    assert [warning.filename for warning in told] == [__file__]
    assert result.snapshot_id == 5
    assert lines(reopened(table)) == ["0 1 0 v4"]
    assert names(store) == live_names(table)
    write_lines(table, "+I 0 2 0 v5")
    assert levels(table) == [(5, 2)]


def test_writer_goes_on_beyond_the_stop_trigger_whoever_compacts_too() -> None:
    table = new_table(**WRITE_ONLY, **IN_THE_WRITE)
    for n in range(9):
        write_lines(table, f"+I 0 {n} 0 v{n}")
    table.alter(SetOption("write-only", "false"))

    def other() -> object:
        return reopened(table).compact(full=True)

    def append() -> object:
        with mock.patch.object(upkeep_writing, "why_not_compacted", return_value="not now"):
            return [write_lines(table, f"+I 0 {50 + n} 0 w") for n in range(10)]

    # The write itself comes first; then another compaction, and many more writes before it.
    late = overtaken(table, lambda: None, lambda: (append(), other()))
    write_lines(late, "+I 0 99 0 last")
    assert table.stored.newest_files().bucket(bucket_of(table)).runs <= 5
    assert len(lines(reopened(table))) == 20


def bucket_of(table: kt.Table) -> tuple[bytes, int]:
    entry = table.scan().live.entries[0]
    return entry.partition, entry.bucket


# -- when asked ------------------------------------------------------------------------------------


def test_full_compaction_leaves_one_run_and_then_nothing_to_do() -> None:
    table = new_table(**WRITE_ONLY)
    write_lines(table, "+I 1 1 0 a", "+I 2 1 0 a")
    write_lines(table, "+I 1 2 0 b")
    done = table.compact(full=True)
    assert (done.snapshot_id, done.buckets, done.files_before, done.files_after) == (3, 2, 3, 2)
    assert done.bytes_before > 0
    assert "files_before" in done._repr_html_()
    assert levels(table) == [(5, 1), (5, 2)]
    again = table.compact(full=True)
    assert (again.snapshot_id, again.buckets, again.overtaken) == (None, 0, False)
    assert len(table.snapshots()) == 3


def test_dry_run_tells_what_would_be_taken_up_and_does_nothing() -> None:
    table = new_table(**WRITE_ONLY)
    for n in range(3):
        write_lines(table, f"+I 1 {n} 0 a", f"+I 2 {n} 0 a")
    told = table.compact(full=True, dry_run=True)
    assert (told.snapshot_id, told.buckets, told.files_before) == (None, 2, 6)
    assert (told.files_after, told.bytes_written) == (None, None)
    assert table.compact(dry_run=True).buckets == 0
    assert levels(table) == [(0, 1)] * 6


def test_older_snapshots_and_columns_of_old_files_stay_readable() -> None:
    table = new_table(**WRITE_ONLY)
    write_lines(table, "+I 0 1 0 a", "+I 0 2 0 b")
    table.alter(AddColumn(("n",), kt.parse_sql_type("INT")))
    table.write([{"p": 0, "k": 2, "s": 0, "v": "c", "n": 7}])
    table.compact(full=True)
    assert lines(reopened(table)) == ["0 1 0 a -", "0 2 0 c 7"]
    past = table.scan(snapshot_id=1).to_pylist()
    assert sorted(row["v"] for row in past) == ["a", "b"]


def test_large_files_without_a_common_key_move_without_being_written_again() -> None:
    store = empty_store()
    table = new_table(store, target_file_size="1 kb", **WRITE_ONLY)
    write_lines(table, "+I 0 1 0 a", "+I 0 2 0 a")
    write_lines(table, "+I 0 5 0 a", "-D 0 6 0 x")
    write_lines(table, "+I 0 8 0 a")
    before = live_names(table)
    done = table.compact(full=True)
    # The delete, which nothing can come before, is worth writing its file again.
    assert (done.files_before, done.files_after, done.files_written) == (3, 3, 1)
    assert len(before & live_names(table)) == 2
    assert levels(table) == [(5, 1), (5, 1), (5, 2)]
    assert lines(reopened(table)) == ["0 1 0 a", "0 2 0 a", "0 5 0 a", "0 8 0 a"]


def test_file_of_a_writer_that_counts_no_deletes_moves_with_the_true_count() -> None:
    table = new_table(target_file_size="1 kb", sequence__field="s", **WRITE_ONLY)
    write_lines(table, "+I 0 1 0 a", "-D 0 2 0 x")
    (entry,) = table.scan().live.entries
    silent = replace(entry, file=replace(entry.file, delete_row_count=0))
    unit = Unit((SortedRun(0, (silent,)),), 5, is_whole=True)
    moved = CompactTask(table.scan().view, unit, 0, 1 << 20)().result
    assert moved is not None
    gone, kept = moved.entries
    assert (gone, gone.kind) == (replace(silent, kind=FileKind.DELETE), FileKind.DELETE)
    assert kept.file == replace(entry.file, level=5, delete_row_count=1)


def test_compacted_run_is_cut_at_the_target_size_in_key_order() -> None:
    table = new_table(target_file_size="4 kb", **WRITE_ONLY)
    for n in range(3):
        rows = [{"p": 0, "k": k, "s": n, "v": uuid4().hex} for k in range(n, 3000, 3 - n)]
        table.write(rows)
    before = lines(reopened(table))
    done = table.compact(full=True)
    assert done.files_written is not None
    assert done.files_written > 10
    assert lines(reopened(table)) == before
    (bucket,) = table.scan().plan.buckets
    assert [len(section.files) for section in bucket.sections] == [1] * done.files_written


# -- beside others ---------------------------------------------------------------------------------


def test_rows_appended_meanwhile_lie_on_top_of_the_compacted() -> None:
    table = new_table(**WRITE_ONLY)
    for n in range(3):
        write_lines(table, f"+I 0 1 0 v{n}", f"+I 0 2 0 v{n}")
    late = overtaken(table, lambda: write_lines(table, "+I 0 1 0 later", "-D 0 2 0 x"))
    assert late.compact(full=True).snapshot_id == 5
    assert lines(reopened(table)) == ["0 1 0 later"]
    assert levels(table) == [(0, 2), (5, 2)]


@pytest.mark.parametrize("target", ["128 mb", "1 kb"], ids=["rewritten", "moved"])
def test_loser_of_two_compactions_tidies_up_and_is_done(target: str) -> None:
    store = empty_store()
    table = new_table(store, target_file_size=target, **WRITE_ONLY)
    for n in range(3):
        write_lines(table, f"+I 0 {n} 0 v{n}")
    before = names(store)
    first: list[kt.CompactionResult] = []
    late = overtaken(table, lambda: first.append(table.compact(full=True)))
    done = late.compact(full=True)
    assert (done.snapshot_id, done.overtaken, done.files_written) == (None, True, 0)
    assert names(store) == before | live_names(table)
    assert [s.commit_kind for s in table.snapshots()].count(CommitKind.COMPACT) == 1
    assert lines(reopened(table)) == ["0 0 0 v0", "0 1 0 v1", "0 2 0 v2"]


def test_compactions_of_disjoint_files_do_not_meet_on_one_level() -> None:
    table = new_table(num_sorted_run__compaction_trigger="2", **WRITE_ONLY)
    write_lines(table, "+I 0 1 0 a")
    write_lines(table, "+I 0 2 0 a")

    def act() -> None:
        table.compact(full=True)
        write_lines(table, "+I 0 3 0 b")
        write_lines(table, "+I 0 4 0 b")

    stale = overtaken(table, act)
    assert stale.compact(full=True).overtaken
    assert lines(reopened(table)) == ["0 1 0 a", "0 2 0 a", "0 3 0 b", "0 4 0 b"]


def test_overwritten_partition_does_not_come_back() -> None:
    table = new_table(**WRITE_ONLY)
    for n in range(3):
        write_lines(table, f"+I 0 1 0 v{n}", f"+I 1 1 0 v{n}")
    late = overtaken(table, lambda: table.overwrite([], {"p": 0}))
    assert late.compact(full=True).overtaken
    assert lines(reopened(table)) == ["1 1 0 v2"]


# -- failures --------------------------------------------------------------------------------------


@copies_of
def filled(store: Store) -> None:
    table = new_table(store, sequence__field="s", **WRITE_ONLY)
    for n in range(3):
        write_lines(table, f"+I 0 1 {n} v{n}", f"+I 1 {n} 0 v{n}", f"-D 1 {n} {n} x")


ROWS = ["0 1 2 v2"]


def operations() -> list[tuple[str, int]]:
    store = FaultyStore(filled())
    table_in(store).compact(full=True)
    return stops_of(store.log)


def contents(store: Store) -> dict[str, bytes]:
    return {file.path: store.read(file.path) for file in store.list("")}


FAULTS = faults_of(operations(), "crash", "fail", "lost-response", "interrupt")


@pytest.mark.parametrize(("operation", "nth", "action"), FAULTS)
def test_failure_anywhere_loses_nothing(operation: str, nth: int, action: Action) -> None:
    store = filled()
    faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])  # type: ignore[arg-type]
    with suppress(kt.DataError, Crash, KeyboardInterrupt):
        table_in(faulty).compact(full=True)
    table = table_in(store)
    assert lines(reopened(table)) == ROWS
    if action == "fail" and contents(store) == contents(filled()):
        return  # nothing was done, so going on is that of any other compaction
    live = {e.file.file_name for s in table.snapshots() for e in table.scan(
        snapshot_id=s.id).live.entries}  # fmt: skip
    assert live <= names(store)
    if action != "crash" and operation not in ("create", "hint", "delete"):
        assert names(store) == live
    write_lines(table, "+I 1 2 1 late", "+I 0 9 0 new")
    assert lines(reopened(table)) == sorted([*ROWS, "0 9 0 new"])
    table.compact(full=True)
    assert lines(reopened(table)) == sorted([*ROWS, "0 9 0 new"])


# -- tombstones ------------------------------------------------------------------------------------


def compact_at(table: kt.Table, now_ms: int) -> None:
    with mock.patch.object(compaction, "wall_clock_ms", return_value=now_ms):
        table.compact(full=True)


def test_delete_outlives_full_compactions_so_that_a_late_row_stays_out() -> None:
    table = new_table(sequence__field="s", **WRITE_ONLY)
    write_lines(table, "+I 0 1 5 a", "+I 0 2 5 a")
    write_lines(table, "-D 0 1 7 x")
    table.compact(full=True)
    assert levels(table) == [(5, 2)]
    write_lines(table, "+I 0 1 6 late")
    table.compact(full=True)
    assert lines(reopened(table)) == ["0 2 5 a"]
    write_lines(table, "+I 0 1 8 back")
    assert lines(reopened(table)) == ["0 1 8 back", "0 2 5 a"]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_delete_is_forgotten_once_compactions_have_known_it_for_as_long_as_is_told(
    form: str,
) -> None:
    table = new_table(
        sequence__field="s", tombstone__retention="100 ms", file__format=form, **WRITE_ONLY
    )
    write_lines(table, "+I 0 1 5 a", "-D 0 2 7 x")
    compact_at(table, 1000)
    write_lines(table, "-D 0 3 7 x")
    compact_at(table, 1099)
    assert levels(table) == [(5, 3)]
    compact_at(table, 1101)  # the first one is old enough by now, the other is not
    assert levels(table) == [(5, 2)]
    compact_at(table, 1102)  # nothing has changed
    assert len(table.snapshots()) == 5
    compact_at(table, 1300)
    assert levels(table) == [(5, 1)]
    assert lines(reopened(table)) == ["0 1 5 a"]


def test_delete_that_nothing_can_come_before_is_forgotten_by_the_next_full_compaction() -> None:
    table = new_table(**WRITE_ONLY)
    write_lines(table, "+I 0 1 5 a", "+I 0 2 5 a")
    write_lines(table, "-D 0 1 7 x", "-D 0 2 5 x")
    table.compact(full=True)
    assert levels(table) == []
    write_lines(table, "+I 0 1 6 later")
    assert lines(reopened(table)) == ["0 1 6 later"]


def test_retract_of_a_sum_is_no_tombstone() -> None:
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum", **WRITE_ONLY}
    table = empty_table(columns(k="INT NOT NULL", v="INT NOT NULL"), ["k"], options=options)
    table.write([{"k": 1, "v": 5, "_row_kind": "-U"}])
    table.compact(full=True)
    table.write([{"k": 1, "v": 7}])
    assert table.scan().to_pylist() == [{"k": 1, "v": 2}]


def test_retention_is_refused_where_numbers_say_nothing_about_age() -> None:
    padded = {"sequence.field": "s", "sequence.auto-padding": "row-kind-flag"}
    with pytest.raises(kt.InvalidError, match=r"'tombstone.retention'.*'sequence.auto-padding'"):
        new_table(tombstone__retention="1 d", **padded)


marks = st.frozensets(st.tuples(st.integers(0, 20), st.integers(0, 1000)), max_size=8)


@given(
    found=marks,
    highest=st.integers(0, 20),
    now=st.integers(1000, 3000),
    retention=st.integers(0, 999),
)
def test_noted_ages_are_few_and_never_too_high(
    found: frozenset[tuple[int, int]], highest: int, now: int, retention: int
) -> None:
    kept = Ages(found).for_new_file(highest, now, retention)
    assert len(kept.marks) <= 18
    exact = Ages(found | {(highest, now)})
    for later in (now, now + retention // 3, now + retention, now + 9 * retention):
        old, known = exact.horizon(later, retention), kept.horizon(later, retention)
        assert known is None or (old is not None and known <= max(old, highest))
        assert known is None or known <= highest
    assert kept.horizon(now + retention, retention) == highest


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_notes_are_kept_in_the_file_that_a_compaction_writes(form: str, tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table(
        "t", columns(k="INT NOT NULL", s="INT"), ["k"],
        options={
            "sequence.field": "s", "tombstone.retention": "9 d", "file.format": form, **WRITE_ONLY,
        },
    )  # fmt: skip
    table.write([{"k": 1, "s": 1}])
    table.write([{"k": 1, "s": 2}])
    compact_at(table, 77)
    (entry,) = table.scan().live.entries
    store = table.metadata.store
    assert Ages.read(store, table.scan().view.file_path(entry)) == Ages(frozenset({(1, 77)}))


# -- surfaces --------------------------------------------------------------------------------------


def test_sql_compacts_fully_unless_told_otherwise() -> None:
    store = empty_store()
    table, lake = new_table(store, **WRITE_ONLY), kt.connect("", store=store)
    for n in range(2):
        write_lines(table, f"+I 0 1 0 v{n}")
    (row,) = lake.sql("CALL sys.compact(table => 't', compact_strategy => 'minor')").to_pylist()
    assert row["snapshot_id"] is None
    (row,) = lake.sql("CALL sys.compact('t')").to_pylist()
    assert (row["snapshot_id"], row["files_before"], row["files_after"]) == (3, 2, 1)
    with pytest.raises(kt.InvalidError, match=r"compact_strategy is 'tiny'.*'full', 'minor'"):
        lake.sql("CALL sys.compact('t', compact_strategy => 'tiny')")


def runs_of_partitions(table: kt.Table) -> list[int]:
    """How many files each of three partitions has."""
    live = Counter(entry.partition for entry in table.scan().live.entries)
    return [live[partition] for partition in sorted(live)]


@pytest.mark.parametrize("key", ["p k", ""], ids=["primary key", "append table"])
def test_some_partitions_are_compacted_and_the_others_stay_as_they_are(key: str) -> None:
    store = empty_store()
    lake = kt.connect("", store=store)
    table = lake.create_table("t", columns(**COLUMNS), key.split(), ["p"], options=WRITE_ONLY)
    for n in range(2):
        rows = parsed(table.schema, *(f"+I {p} 1 0 v{n}" for p in range(3)))
        table.write([{name: row[name] for name in COLUMNS} for row in rows])
    before = lines(reopened(table))
    assert runs_of_partitions(table) == [2, 2, 2]
    assert table.compact(full=True, partition={"p": 1}, dry_run=True).files_before == 2
    table.compact(full=True, partition={"p": 1})
    assert runs_of_partitions(table) == [2, 1, 2]
    lake.sql("CALL sys.compact(table => 't', partitions => 'p=0;p=7')")
    assert runs_of_partitions(table) == [1, 1, 2]
    assert table.compact(full=True, partition={"p": 7}).snapshot_id is None
    assert lines(reopened(table)) == before
    with pytest.raises(kt.InvalidError, match=r"the partition names 'k'; .* columns are p"):
        table.compact(partition={"k": 1})


def test_full_compaction_of_a_partition_is_none_of_the_table() -> None:
    """What is to be compacted in full every so many commits still is."""
    table = new_table(full_compaction__delta_commits="2", **WRITE_ONLY)
    write_lines(table, "+I 0 1 0 a", "+I 1 1 0 a")
    table.compact(full=True, partition={"p": 0})
    assert not table.snapshots()[-1].commit_user.startswith(compaction.FULL_COMPACTION)
    table.compact(full=True)
    assert table.snapshots()[-1].commit_user.startswith(compaction.FULL_COMPACTION)


def test_no_warning_where_all_is_well() -> None:
    table = new_table()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(12):
            write_lines(table, f"+I 0 1 0 v{n}")
