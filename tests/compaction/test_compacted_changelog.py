"""With `changelog-producer = full-compaction` compactions tell what became of keys.

The law: whatever is written and compacted when, the changelog up to a snapshot, folded from nothing
on, gives the rows that were told of by then, and a compaction in full tells of all of them.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import engine_histories
import keytide as kt
from compacting import compact_newest
from copies import copies_of
from engine_histories import ENGINES, as_bags, history
from keytide.compaction import compact as compaction
from keytide.definition.schema_evolution import AddColumn, SetOption
from keytide.format.manifest_entry import FileKind, FileSource
from keytide.format.snapshot import CommitKind
from keytide.read import merged_versions as read
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from new_tables import dotted, empty_lake, empty_store, empty_table, table_in
from overtaking import overtaken
from stops import faults_of, stops_of
from table_rows import lines, lines_in_order, parsed, reopened, write_lines

COLUMNS = {"p": "INT NOT NULL", "k": "INT NOT NULL", "s": "INT", "v": "STRING"}
FULL = {"changelog-producer": "full-compaction"}
LOOKUP = {"changelog-producer": "lookup"}
UPPER = set(range(1, 6))
MB = 1 << 20


def new_table(
    store: Store | None = None, types: Mapping[str, str] = COLUMNS, **options: str
) -> kt.Table:
    own = dotted(options)
    return empty_table(COLUMNS, ["p", "k"], ["p"], options=FULL | own, store=store)


def write(table: kt.Table, *rows: str) -> None:
    write_lines(table, *rows)
    table.close()


def changelog(table: kt.Table, start: int = 0, end: int | None = None) -> list[str]:
    return lines_in_order(table.changes(start, end, mode="changelog"))


def fold(changes: Iterable[str], rows: Sequence[str] = ()) -> list[str]:
    """The rows after changes, each of which must meet what it says that it finds."""
    held = {tuple(row.split()[:2]): row for row in rows}
    before: tuple[str, ...] | None = None
    for change in changes:
        kind, row = change.split(" ", 1)
        key = tuple(row.split()[:2])
        assert (before == key) if kind == "+U" else (before is None), change
        if kind in ("-U", "-D"):
            assert held.pop(key) == row, change
        else:
            assert key not in held, change
            held[key] = row
        before = key if kind == "-U" else None
    assert before is None
    return sorted(held.values())


# -- what is told ----------------------------------------------------------------------------------


def test_each_write_is_told_unless_the_table_says_otherwise() -> None:
    table = new_table()
    write(table, "+I 0 1 0 a", "+I 0 2 0 b", "+U 0 3 0 c")
    assert changelog(table) == ["+I 0 1 0 a", "+I 0 2 0 b", "+I 0 3 0 c"]
    write(table, "+I 0 1 0 a2", "-D 0 2 9 x", "-D 0 4 0 y", "-U 0 3 8 z")
    assert changelog(table, 2) == ["-U 0 1 0 a", "+U 0 1 0 a2", "-D 0 2 0 b", "-D 0 3 0 c"]
    write(table, "-D 0 2 9 x", "+I 0 5 0 e", "-D 0 5 0 e")
    assert changelog(table, 4) == []
    kinds = [snapshot.commit_kind for snapshot in table.snapshots()]
    assert kinds == [CommitKind.APPEND, CommitKind.COMPACT] * 3
    counts = [snapshot.changelog_record_count for snapshot in table.snapshots()]
    assert counts == [None, 3, None, 4, None, None]
    assert table.verify().findings == ()


def test_only_the_net_effect_of_commits_between_full_compactions_is_told() -> None:
    table = new_table(full_compaction__delta_commits="3")
    for v in "abcdefgh":
        write(table, f"+I 0 1 0 {v}")
    assert changelog(table) == ["+I 0 1 0 c", "-U 0 1 0 c", "+U 0 1 0 f"]
    table.compact(full=True)
    assert changelog(table)[3:] == ["-U 0 1 0 f", "+U 0 1 0 h"]
    write(table, "-D 0 1 0 x")
    write(table, "+I 0 1 0 i")
    assert len(changelog(table)) == 5
    write(table, "+I 1 1 0 j")
    assert changelog(table)[5:] == ["-U 0 1 0 h", "+U 0 1 0 i", "+I 1 1 0 j"]


def test_compactions_that_are_not_full_tell_nothing() -> None:
    table = new_table(full_compaction__delta_commits="100", num_sorted_run__compaction_trigger="2")
    for n in range(9):
        write(table, *(f"+I 0 {k} 0 v{n}" for k in range(9 - n)))
    assert any(s.commit_kind is CommitKind.COMPACT for s in table.snapshots())
    before = fold(changelog(table))
    write(table, "+I 0 1 0 w")
    assert fold(changelog(table)) in (before, lines(table))
    table.compact(full=True)
    assert fold(changelog(table)) == lines(table)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["-U 0 1 1 a", "+U 0 1 1 a", "-U 0 2 1 b", "+U 0 2 2 b", "-U 0 3 1 c", "+U 0 3 1 d"]),
        ({"row-deduplicate": "true"}, ["-U 0 2 1 b", "+U 0 2 2 b", "-U 0 3 1 c", "+U 0 3 1 d"]),
        (
            {"row-deduplicate": "true", "row-deduplicate-ignore-fields": "s"},
            ["-U 0 3 1 c", "+U 0 3 1 d"],
        ),
    ],
)
def test_equal_rows_are_told_unless_they_are_left_out(
    options: dict[str, str], expected: list[str]
) -> None:
    table = new_table(**{f"changelog-producer.{key}": value for key, value in options.items()})
    write(table, "+I 0 1 1 a", "+I 0 2 1 b", "+I 0 3 1 c")
    write(table, "+I 0 1 1 a", "+I 0 2 2 b", "+I 0 3 1 d")
    assert changelog(table, 2) == expected


def test_deletes_that_are_kept_are_told_once() -> None:
    table = new_table(sequence__field="s", tombstone__retention="0 s")
    write(table, "+I 0 1 5 a")
    write(table, "-D 0 1 7 a")
    assert changelog(table) == ["+I 0 1 5 a", "-D 0 1 5 a"]
    for late in ("+I 0 1 6 b", "-D 0 1 8 c"):
        write(table, late)
        assert changelog(table, 4) == []
    table.compact(full=True)
    table.compact(full=True)
    assert changelog(table, 4) == []
    assert [s.commit_kind for s in table.snapshots()[-1:]] == [CommitKind.COMPACT]


def test_rows_are_told_as_the_table_shows_them() -> None:
    table = new_table(**{"fields.v.default-value": "none"})
    table.write([{"p": 0, "k": 1, "s": 1, "v": None}])
    assert changelog(table) == ["+I 0 1 1 none"]
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")))
    table.write([{"p": 0, "k": 1, "s": 1, "v": "a", "w": 7}])
    assert changelog(table, 2) == ["-U 0 1 1 none -", "+U 0 1 1 a 7"]


def test_rows_of_an_overwrite_are_told_and_those_that_it_replaced_are_not() -> None:
    table = new_table()
    write(table, "+I 0 1 1 a", "+I 0 2 1 b")
    table.overwrite(parsed(table.schema, "+I 0 1 2 c"))
    assert changelog(table, 2) == ["+I 0 1 2 c"]


def test_new_table_is_told_with_the_rows_it_was_made_with() -> None:
    lake = empty_lake()
    with_changelog = "'changelog-producer' = 'full-compaction'"
    lake.sql(
        f"CREATE TABLE t (PRIMARY KEY (k) NOT ENFORCED) WITH ({with_changelog}) AS "
        "SELECT * FROM (VALUES (1, 'a')) AS x(k, v)"
    )
    assert changelog(lake.table("t")) == ["+I 1 a"]


def codecs_by_level(table: kt.Table) -> dict[int, set[str]]:
    found = dict[int, set[str]]()
    for entry in table.scan().live.entries:
        store, path = table.scan().view.data_file(entry)
        group = pq.read_metadata(store.open_input(path)).row_group(0)
        codecs = {group.column(i).compression for i in range(group.num_columns)}
        found[entry.file.level] = codecs
    return found


def test_runs_that_a_write_merges_are_packed_fast_and_those_of_the_highest_level_well() -> None:
    table = new_table(**LOOKUP)
    write(table, *(f"+I 0 {k} 0 a" for k in range(1000)))
    for k in range(5):
        write(table, f"+I 0 {k} 0 b")
    merged = [e.file for e in table.scan().live.entries if e.file.row_count in range(2, 1000)]
    assert [file.file_source for file in merged] == [FileSource.COMPACT]
    assert {level: codecs for level, codecs in codecs_by_level(table).items() if level < 5} == {
        level: {"LZ4"} for level in codecs_by_level(table) if level < 5
    }
    table.compact(full=True)
    assert codecs_by_level(table) == {5: {"ZSTD"}}


def test_large_file_is_moved_and_told() -> None:
    table = new_table(target_file_size="1 b")
    write(table, "+I 0 1 1 a", "+U 0 3 1 c")
    names = {e.file.file_name for e in table.scan().live.entries}
    appended = table.metadata.entries(table.metadata.delta_manifests(table.metadata.snapshot(1)))
    assert names == {entry.file.file_name for entry in appended}
    assert changelog(table) == ["+I 0 1 1 a", "+I 0 3 1 c"]
    entries = table.metadata.entries(table.metadata.changelog_manifests(table.metadata.snapshot(2)))
    assert [(e.kind, e.file.level, e.file.row_count) for e in entries] == [(FileKind.ADD, 5, 1)] * 2


def test_pairs_stay_together_in_small_files() -> None:
    table = new_table(target_file_size="1 b")
    for v in "ab":
        write(table, *(f"+I 0 {k} 0 {v}" for k in range(5)))
    assert fold(changelog(table)) == lines(table)


def test_table_with_more_levels_tells_on() -> None:
    table = new_table()
    write(table, "+I 0 1 0 a")
    table.alter(SetOption("num-levels", "9"))
    write(table, "+I 0 2 0 b")
    assert changelog(table) == ["+I 0 1 0 a", "+I 0 2 0 b"]


def test_changelog_that_nobody_makes_is_named() -> None:
    with pytest.warns(kt.KeytideWarning, match=r"no effect.*'sequence.field' = 's'"):
        table = new_table(merge_engine="partial-update", sequence__field="s")
    write(table, "+I 0 1 0 a")
    with pytest.raises(
        kt.InvalidError, match=r"stores no changelog.*'sequence.field'.*mode='diff'"
    ):
        changelog(table)


# -- what lookups tell -----------------------------------------------------------------------------


def test_each_commit_is_told_with_the_rows_before_it() -> None:
    table = new_table(**LOOKUP)
    write(table, "+I 0 1 0 a", "+I 0 2 0 b", "+I 0 3 0 c", "+I 0 3 0 c2")
    write(table, "+U 0 1 0 a2", "-U 0 2 0 x", "-D 0 9 0 y", "+I 0 8 0 z", "-D 0 8 0 z")
    write(table, "+I 0 1 0 a3")
    write(table, "-D 0 1 7 x", "+U 0 2 0 b2")
    assert [changelog(table, n, n + 2) for n in (0, 2, 4, 6)] == [
        ["+I 0 1 0 a", "+I 0 2 0 b", "+I 0 3 0 c2"],
        ["-U 0 1 0 a", "+U 0 1 0 a2", "-D 0 2 0 b"],
        ["-U 0 1 0 a2", "+U 0 1 0 a3"],
        ["-D 0 1 0 a3", "+I 0 2 0 b2"],
    ]
    kinds = [snapshot.commit_kind for snapshot in table.snapshots()]
    assert kinds == [CommitKind.APPEND, CommitKind.COMPACT] * 4
    assert [s.changelog_record_count for s in table.snapshots()][1::2] == [3, 3, 2, 2]


def test_look_ups_leave_older_files_as_they_are() -> None:
    table = new_table(**LOOKUP)
    write(table, *(f"+I 0 {k} 0 a" for k in range(1000)))
    (first,) = table.scan().live.entries
    for k in range(3):
        write(table, f"+I 0 {k} 0 b")
    levels = {e.file.file_name: e.file.level for e in table.scan().live.entries}
    assert levels.pop(first.file.file_name) == 5
    assert sorted(levels.values()) == [2, 3, 4]
    assert changelog(table, 2) == [f"{kind} 0 {k} 0 {v}" for k in range(3) for kind, v in
                              (("-U", "a"), ("+U", "b"))]  # fmt: skip


def test_late_row_is_told_as_one_that_changes_nothing() -> None:
    for deduplicates, pair in (("false", ["-U 0 1 7 a", "+U 0 1 7 a"]), ("true", [])):
        options = {"changelog-producer.row-deduplicate": deduplicates}
        table = new_table(**LOOKUP, sequence__field="s", **options)
        write(table, "+I 0 1 7 a")
        write(table, "+I 0 1 3 b", "-D 0 1 4 c")
        assert changelog(table, 2) == pair
        write(table, "-D 0 1 8 d")
        write(table, "+I 0 1 5 e", "-D 0 1 9 f")
        assert changelog(table, 4) == ["-D 0 1 7 a"]


def test_first_row_is_told_once_and_lies_in_one_file() -> None:
    table = new_table(**LOOKUP, merge_engine="first-row")
    for v in "abc":
        write(table, "+I 0 1 0 " + v, f"+I 0 {ord(v)} 0 {v}")
    assert changelog(table) == ["+I 0 1 0 a", "+I 0 97 0 a", "+I 0 98 0 b", "+I 0 99 0 c"]
    assert sum(e.file.row_count for e in table.scan().live.entries) == 4


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("options", "runs"),
    [({"lookup-wait": "false"}, 4), ({"lookup-compact": "gentle"}, 4),
     ({"lookup-compact": "gentle", "lookup-compact.max-interval": "2"}, 1)],
)  # fmt: skip
def test_telling_is_put_off_where_the_table_says_so(options: dict[str, str], runs: int) -> None:
    table = new_table(**LOOKUP, **options)
    for v in "abc":
        write(table, f"+I 0 1 0 {v}")
        if runs > 1:
            assert changelog(table) == []
    levels = [e.file.level for e in table.scan().live.entries]
    assert levels.count(0) == runs - (runs > 1)
    table.compact()
    assert fold(changelog(table)) == ["0 1 0 c"]
    for v in "defghijk":
        write(table, f"+I 0 1 0 {v}")
    assert len(changelog(table)) > 3


def test_keys_that_do_not_fit_in_memory_are_looked_up_too() -> None:
    table = new_table(**LOOKUP, read__memory="1 b")
    write(table, *(f"+I 0 {k} 0 a" for k in range(50)))
    write(table, *(f"+I 0 {k} 0 b" for k in range(40, 60)))
    assert fold(changelog(table)) == lines(table)
    assert len(changelog(table, 2)) == 30


# -- the law ---------------------------------------------------------------------------------------

PRODUCERS: dict[str, dict[str, str]] = {
    "full-compaction": FULL,
    "lookup": LOOKUP,
    "lookup with vectors": {**LOOKUP, "deletion-vectors.enabled": "true"},
}


def folded(changes: Iterable[Mapping[str, Any]], held: dict[int, str]) -> dict[int, str]:
    """The rows after changes, each of which must meet what it says that it finds."""
    after, before = dict(held), None
    for change in changes:
        kind, key = change["_row_kind"], change["k"]
        row = repr([value for name, value in change.items() if name != "_row_kind"])
        assert before == (key if kind == "+U" else None)
        if kind in ("-U", "-D"):
            assert after.pop(key) == row
        else:
            assert key not in after
            after[key] = row
        before = key if kind == "-U" else None
    assert before is None
    return after


def has_told_all(table: kt.Table) -> bool:
    levels = {entry.file.level for entry in table.stored.newest_files().entries}
    return levels <= ({5} if table.options["changelog-producer"] == "full-compaction" else UPPER)


def check_history(engine: str, producer: str, data: st.DataObject) -> None:
    kinds, options = ENGINES[engine]
    if "first-row" in engine:
        producer = "lookup"
    chosen = {
        "write-only": data.draw(st.sampled_from(["true", "false"]), "write-only"),
        "target-file-size": data.draw(st.sampled_from(["1 b", "1 mb"])),
        "num-sorted-run.compaction-trigger": data.draw(st.sampled_from(["2", "5"])),
        "num-levels": "6",
        "changelog-producer.row-deduplicate": data.draw(st.sampled_from(["true", "false"])),
    }
    if producer == "full-compaction":
        chosen["full-compaction.delta-commits"] = data.draw(st.sampled_from(["1", "3"]))
    table = engine_histories.made({**options, **PRODUCERS[producer], **chosen})
    rows: dict[int, str] = {}
    seen = 0
    with (
        mock.patch.object(read, "_BATCH_ROWS_MIN", data.draw(st.integers(1, 4))),
        mock.patch.object(compaction, "_MEMORY_BYTES_MAX", data.draw(st.sampled_from([1, MB]))),
    ):
        for step in data.draw(history(kinds)):
            if isinstance(step, int):
                event(f"compaction: {compact_newest(table, step)}")
            else:
                engine_histories.write(table, step)
            told = table.changes(seen, mode="changelog").to_pylist()
            rows = folded(told, rows)
            seen = table.snapshots()[-1].id if table.snapshots() else 0
            if has_told_all(table):
                event("told all")
                shown = [dict(enumerate(ast.literal_eval(row))) for row in rows.values()]
                assert as_bags(shown) == engine_histories.row_bags(table)
    assert table.verify().findings == ()


@pytest.mark.takes_turns
@given(
    engine=st.sampled_from(list(ENGINES)),
    producer=st.sampled_from(list(PRODUCERS)),
    data=st.data(),
)
def test_folded_changelog_is_the_table(engine: str, producer: str, data: st.DataObject) -> None:
    check_history(engine, producer, data)


steps = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["+I", "+U", "-D"]), st.integers(0, 5)), min_size=1, max_size=4
    )
    | st.sampled_from(["rescale 1", "rescale 2", "rescale 3", "compact", "compact in full"]),
    max_size=7,
)


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "producer",
    [
        *PRODUCERS.values(),
        {**LOOKUP, "lookup-wait": "false"},
        {**FULL, "full-compaction.delta-commits": "9"},
    ],
    ids=str,
)
@settings(max_examples=10)
@given(steps=steps, order=st.sampled_from([{}, {"sequence.field": "s"}]))
def test_rescaling_tells_nothing_again_and_forgets_nothing(
    producer: dict[str, str], steps: list[Any], order: dict[str, str]
) -> None:
    table = new_table(bucket="2", **producer, **order)
    for number, step in enumerate(steps):
        if isinstance(step, list):
            write(table, *(f"{kind} {k % 2} {k} {number} v{number}" for kind, k in step))
        elif step.startswith("rescale"):
            table.alter(SetOption("bucket", step.split()[1]))
            before = lines(table)
            table.rescale()
            assert lines(table) == before
        else:
            table.compact(full=step == "compact in full")
    table.compact(full=True)
    assert fold(changelog(table)) == lines(table)
    assert table.verify().is_healthy


@pytest.mark.soak
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60)
@given(data=st.data())
def test_folded_changelog_of_long_searches_is_the_table(
    engine: str, producer: str, data: st.DataObject
) -> None:
    check_history(engine, producer, data)


# -- failures and other writers --------------------------------------------------------------------

NEW = ["+I 0 1 0 a2", "-D 0 2 0 b", "+I 1 3 0 c"]


def untold(producer: dict[str, str]) -> Callable[[], Store]:
    @copies_of
    def copies(store: Store) -> None:
        table = new_table(store, bucket="2", **producer)
        write(table, "+I 0 1 0 a", "+I 0 2 0 b")
        table.alter(SetOption("write-only", "true"))
        write(table, *NEW)

    return copies


STORES = {name: untold(options) for name, options in PRODUCERS.items()}


def compact(table: kt.Table) -> kt.CompactionResult:
    """What tells of everything."""
    return table.compact(full=table.options["changelog-producer"] == "full-compaction")


def writes_of_compaction(producer: str) -> list[tuple[str, str, int]]:
    store = FaultyStore(STORES[producer]())
    compact(table_in(store))
    stops = stops_of(store.log, "put", "output", "create", "hint", "delete")
    return [
        (producer, *fault)
        for fault in faults_of(stops, "crash", "fail", "lost-response", "interrupt")
    ]


PLACES = [place for producer in PRODUCERS for place in writes_of_compaction(producer)]


def files(store: Store) -> set[str]:
    return {
        path.rsplit("/", 1)[-1]
        for path in (info.path for info in store.list(""))
        if "/data-" in path or "/changelog-" in path
    }


def named_files(table: kt.Table) -> set[str]:
    metadata, named = table.metadata, set()
    for snapshot in table.snapshots():
        entries = (
            *metadata.entries(metadata.manifests(snapshot)),
            *metadata.entries(metadata.changelog_manifests(snapshot)),
        )
        named |= {entry.file.file_name for entry in entries}
    return named


@pytest.mark.parametrize(("producer", "operation", "nth", "action"), PLACES)
def test_failure_anywhere_tells_everything_once(
    producer: str, operation: Any, nth: int, action: Action
) -> None:
    store = STORES[producer]()
    with suppress(kt.DataError, Crash, KeyboardInterrupt):
        compact(table_in(FaultyStore(store, [Fault(operation, nth=nth, action=action)])))
    table = table_in(store)
    assert fold(changelog(table)) in (["0 1 0 a", "0 2 0 b"], ["0 1 0 a2", "1 3 0 c"])
    assert named_files(table) <= files(store)
    if action != "crash" and operation not in ("create", "hint", "delete"):
        assert named_files(table) == files(store)
    compact(table)
    assert fold(changelog(table)) == lines(table) == ["0 1 0 a2", "1 3 0 c"]


@pytest.mark.parametrize("producer", PRODUCERS)
def test_of_two_compactions_one_tells(producer: str) -> None:
    store = STORES[producer]()
    late = overtaken(table_in(store), lambda: compact(table_in(store)))
    assert compact(late).overtaken
    table = table_in(store)
    assert fold(changelog(table)) == lines(table)
    assert files(store) == named_files(table)


@pytest.mark.parametrize("options", PRODUCERS.values(), ids=PRODUCERS)
def test_rows_that_come_while_others_compact_are_told_too(options: dict[str, str]) -> None:
    table = new_table(**options)
    write(table, "+I 0 1 0 a")
    other = reopened(table)
    # The other writer's rows come between the write and its compaction, and are compacted first.
    write(overtaken(table, lambda: None, lambda: write(other, "+I 0 1 0 c")), "+I 0 1 0 b")
    assert fold(changelog(table)) == lines(table) == ["0 1 0 c"]


@pytest.mark.parametrize("options", [LOOKUP, PRODUCERS["lookup with vectors"]])
def test_write_that_is_made_again_is_told_if_it_was_not(options: dict[str, str]) -> None:
    store = empty_store()
    table = new_table(store, **options)
    rows, author = parsed(table.schema, "+I 0 1 0 a"), {"commit_user": "u", "commit_identifier": 1}
    with suppress(Crash):
        table_in(FaultyStore(store, [Fault("output", nth=2, action="crash")])).write(rows, **author)
    assert changelog(table_in(store)) == []
    assert not table_in(store).write(rows, **author).is_new
    assert changelog(table_in(store)) == ["+I 0 1 0 a"]


def test_failed_compaction_after_a_write_is_made_up_for_by_the_next_one() -> None:
    store = empty_store()
    table = new_table(store)
    faulty = table_in(FaultyStore(store, [Fault("output", nth=2)]))
    with pytest.warns(kt.KeytideWarning, match="the rows are written, but the"):
        write(faulty, "+I 0 1 0 a")
    assert (changelog(table), lines(table)) == ([], ["0 1 0 a"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(table, "+I 1 1 0 b")
    assert changelog(table) == ["+I 0 1 0 a", "+I 1 1 0 b"]
