"""What `Table.changes` gives, folded over one snapshot, is another one."""

from __future__ import annotations

import itertools
import pickle
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from compacting import compact
from keytide.definition.schema_evolution import (
    AddColumn,
    ChangeColumnType,
    DropColumn,
    RenameColumn,
    SetOption,
)
from keytide.read import merged_versions as read
from new_tables import empty_lake, empty_table
from table_rows import lines_in_order

SCHEMA = pa.schema(
    [
        pa.field("p", pa.string()),
        pa.field("k", pa.float64()),
        pa.field("s", pa.int64()),
        pa.field("n", pa.int32()),
        pa.field("v", pa.list_(pa.string())),
    ]
)
Row = tuple[Any, ...]
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "late rows": {"sequence.field": "s"},
    "partial-update": {
        "merge-engine": "partial-update",
        "fields.s.sequence-group": "n",
        "partial-update.remove-record-on-delete": "false",
        "ignore-delete": "true",
    },
    "aggregation": {
        "merge-engine": "aggregation",
        "fields.n.aggregate-function": "sum",
        "fields.s.aggregate-function": "max",
        "fields.s.ignore-retract": "true",
        "fields.v.ignore-retract": "true",
    },
    "first-row": {"merge-engine": "first-row", "ignore-delete": "true"},
}


# -- folding, with a dict as oracle ----------------------------------------------------------------


def texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in rows)


def fold(
    rows: Iterable[Mapping[str, Any]], changes: Iterable[Mapping[str, Any]], key: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows after changes, each of which must meet what it says that it finds."""

    def key_of(row: Mapping[str, Any]) -> str:
        return repr([row[name] for name in key])

    held = {key_of(row): dict(row) for row in rows}
    pending: dict[str, Any] | None = None
    for each in changes:
        change = dict(each)
        kind = change.pop("_row_kind")
        assert (pending is not None) == (kind == "+U"), "a pair is not next to each other"
        if kind in ("-U", "-D"):
            assert repr(held.pop(key_of(change))) == repr(change), "not the image that was there"
        else:
            assert key_of(change) not in held
            assert repr(pending) != repr(change), "both images of a pair are equal"
            held[key_of(change)] = change
        pending = change if kind == "-U" else None
    assert pending is None
    return list(held.values())


def seen_by(table: kt.Table, before: int, after: int) -> list[dict[str, Any]]:
    """The rows of a snapshot with the columns of another one, paired by their ids."""
    if before == 0:
        return []
    was, fields = (table.scan(snapshot_id=s).view.schema.fields for s in (before, after))
    names = {field.id: field.name for field in was}
    rows = table.scan(snapshot_id=before).to_pylist()
    return [{f.name: row.get(names.get(f.id, "")) for f in fields} for row in rows]


def row_texts(table: kt.Table, snapshot_id: int) -> list[str]:
    return texts(table.scan(snapshot_id=snapshot_id).to_pylist())


def lines_of_changes(changes: kt.Changes) -> list[str]:
    """Changes as texts such as `-U 1 a`."""
    return lines_in_order(changes)


# -- the law ---------------------------------------------------------------------------------------

kinds = st.sampled_from(["+I", "+I", "+U", "-U", "-D"])
rows = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([-1.5, 0.0, 1.0, 2.0, float("nan")]),
    st.integers(0, 4),
    st.none() | st.integers(0, 3),
    st.none() | st.lists(st.none() | st.sampled_from("xy"), max_size=2),
    kinds,
)
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(rows, min_size=1, max_size=6)),
    st.tuples(st.just("write"), st.lists(rows, min_size=1, max_size=6)),
    st.tuples(st.just("overwrite"), st.lists(rows, max_size=3)),
    st.tuples(st.sampled_from(["truncate", "compact", "add", "rename", "drop", "retype"])),
    st.tuples(st.just("buckets"), st.lists(rows, min_size=1, max_size=3)),
)


def arrow(table: kt.Table, found: Sequence[Row], *, adds: bool = False) -> pa.Table:
    fields = {field.id: field for field in table.table_schema.fields}
    columns = list(zip(*found, strict=True)) or [()] * 6
    made = {fields[i].name: columns[i] for i in range(len(SCHEMA)) if i in fields}
    made |= {f.name: [None] * len(found) for i, f in fields.items() if i >= len(SCHEMA)}
    kinds = ["+I"] * len(found) if adds else list(columns[-1])
    schema = pa.schema([*table.schema, pa.field("_row_kind", pa.string())])
    return pa.table({**made, "_row_kind": kinds}).select(schema.names).cast(schema)


def take(table: kt.Table, step: Sequence[Any]) -> None:
    """Do a step, unless the table is not made for it."""
    name, found = step[0], step[1] if len(step) > 1 else ()
    names = table.schema.names
    if name == "write":
        table.write(arrow(table, found))
    elif name == "overwrite":
        table.overwrite(arrow(table, found, adds=True))
    elif name == "truncate":
        table.truncate()
    elif name == "compact":
        is_one = table.options["bucket"] == "1" and not table.partition_by
        if is_one and table.scan().live.entries:
            compact(table, level=5)
    elif name == "buckets":
        count = 1 + int(table.options["bucket"])
        table.alter(SetOption("bucket", str(count)))
        table.truncate()
        table.write(arrow(table, found))
    elif name == "add" and "more" not in names:
        table.alter(AddColumn(("more",), kt.parse_sql_type("INT")))
    elif name == "rename" and "v" in names:
        table.alter(RenameColumn(("v",), "w"))
    elif name == "drop" and "more" in names:
        table.alter(DropColumn(("more",)))
    elif name == "retype" and "n" in names:
        table.alter(ChangeColumnType(("n",), kt.parse_sql_type("BIGINT")))


@pytest.mark.takes_turns
@given(
    engine=st.sampled_from(sorted(ENGINES)),
    buckets=st.integers(1, 3),
    partitioned=st.booleans(),
    memory=st.sampled_from(["1 b", "256 mb"]),
    history=st.lists(steps, min_size=2, max_size=5),
)
def test_changes_folded_over_any_snapshot_are_any_later_one(
    engine: str, buckets: int, partitioned: bool, memory: str, history: list[Any]
) -> None:
    options = {"bucket": str(buckets), "read.memory": memory, **ENGINES[engine]}
    table = empty_table(SCHEMA, ["p", "k"], ["p"] if partitioned else [], options=options)
    with mock.patch.object(read, "_BATCH_ROWS_MIN", 2):
        for step in history:
            take(table, step)
        ids = [0, *(snapshot.id for snapshot in table.snapshots())]
        for start, end in {*itertools.pairwise(ids), *((each, ids[-1]) for each in ids[:-1])}:
            changes = table.changes(start, end).to_pylist()
            found = fold(seen_by(table, start, end), changes, ["p", "k"])
            assert texts(found) == row_texts(table, end), (start, end)


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(
    partitioned=st.booleans(),
    history=st.lists(
        st.tuples(
            st.sampled_from(["write", "write", "overwrite", "truncate"]),
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), min_size=1, max_size=3),
        ),
        min_size=2,
        max_size=6,
    ),
)
def test_changes_of_an_append_table_folded_over_any_snapshot_are_any_later_one(
    partitioned: bool, history: list[Any]
) -> None:
    schema = pa.schema([("p", pa.string()), ("n", pa.int64())])
    table = empty_table(schema, [], ["p"] if partitioned else [])
    for name, found in history:
        rows = [{"p": p, "n": n} for p, n in found]
        table.truncate() if name == "truncate" else getattr(table, name)(rows)
    ids = [0, *(snapshot.id for snapshot in table.snapshots())]
    for start, end in itertools.combinations(ids, 2):
        counts = Counter(row_texts(table, start) if start else [])
        for row in table.changes(start, end).to_pylist():
            kind = row.pop("_row_kind")
            counts[repr(tuple(row.values()))] += {"+I": 1, "-D": -1}[kind]
        assert +counts == Counter(row_texts(table, end))
        assert min(counts.values(), default=0) >= 0


SAMPLES = sorted((Path(__file__).parents[1] / "data/samples").glob("**/spec.db/*"))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_changes_fold_in_tables_that_others_wrote(path: Path) -> None:
    table = kt.open_table(path)
    ids = [0, *(snapshot.id for snapshot in table.snapshots())]
    for start, end in [*itertools.pairwise(ids), (0, ids[-1])]:
        if table.scan(snapshot_id=end).schema != table.scan(snapshot_id=start or end).schema:
            continue  # values of a retyped column are not what they were
        changes = table.changes(start, end).to_pylist()
        found = fold(seen_by(table, start, end), changes, table.primary_key)
        assert texts(found) == row_texts(table, end), (start, end)


# -- what is read ----------------------------------------------------------------------------------


def numbered(lake: kt.Lake, **options: str) -> kt.Table:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    return lake.create_table("t", schema, ["k"], options={"bucket": "1", **options})


def test_files_that_both_snapshots_have_are_not_read_outside_of_changed_keys() -> None:
    table = numbered(empty_lake(), bucket="4")
    table.write([{"k": k, "v": "old"} for k in range(1000)])
    table.write([{"k": 7, "v": "new"}])
    explained = table.changes(1).explain()
    assert (explained.tasks, explained.files) == (1, 3)  # one before, two after
    assert lines_of_changes(table.changes(1)) == ["-U 7 old", "+U 7 new"]
    assert table.changes(2).explain().tasks == 0


def test_a_pair_is_in_one_frame_however_small_the_memory() -> None:
    table = numbered(empty_lake())
    table.write([{"k": k, "v": "old"} for k in range(20_000)])
    table.write([{"k": k, "v": "new"} for k in range(0, 20_000, 2)])
    frames = [f for task in table.changes(1).tasks() for f in task.frames(1)]
    assert len(frames) > 1
    for frame in frames:
        assert frame["_row_kind"].to_list() == ["-U", "+U"] * (frame.height // 2)
        assert frame["k"].to_list() == sorted(frame["k"])


def test_tasks_travel_to_another_process() -> None:
    with tempfile.TemporaryDirectory() as path:
        table = numbered(kt.connect(path))
        table.write([{"k": 1, "v": "a"}])
        table.write([{"k": 1, "v": "b"}])
        (task,) = pickle.loads(pickle.dumps(list(table.changes(1).tasks())))
        assert [f["v"].to_list() for f in task.frames(1 << 20)] == [["a", "b"]]


# -- the other modes -------------------------------------------------------------------------------


def test_delta_tells_rows_as_they_were_written_commit_by_commit() -> None:
    table = numbered(empty_lake())
    table.write([{"k": 2, "v": "a", "_row_kind": "+I"}, {"k": 1, "v": "b", "_row_kind": "+U"}])
    table.write([{"k": 2, "v": None, "_row_kind": "-D"}])
    compact(table, level=5)
    table.overwrite([{"k": 2, "v": "c"}])
    assert lines_of_changes(table.changes(0, mode="delta")) == [
        "+U 1 b",
        "+I 2 a",
        "-D 2 -",
        "+I 2 c",
    ]
    assert lines_of_changes(table.changes(1, 3, mode="delta")) == ["-D 2 -"]
    assert lines_of_changes(table.changes(0)) == ["+I 2 c"]


def test_changelogs_that_others_stored_are_read() -> None:
    lookup, raw = (kt.open_table(next(p for p in SAMPLES if p.name == n))
                   for n in ("j_lookup", "j_input"))  # fmt: skip
    changes = lookup.changes(0, mode="changelog").to_pylist()
    assert texts(fold([], changes, lookup.primary_key)) == texts(lookup.scan().to_pylist())
    assert lines_of_changes(raw.changes(1, mode="changelog")) == ["-U 1 a1", "+U 1 a2", "-D 2 b"]


def test_a_changelog_is_read_after_its_snapshot_has_expired(tmp_path: Path) -> None:
    sample = next(p for p in SAMPLES if p.name == "j_input")
    shutil.copytree(sample, tmp_path / "t")
    before = lines_of_changes(kt.open_table(tmp_path / "t").changes(0, mode="changelog"))
    (tmp_path / "t/changelog").mkdir()
    (tmp_path / "t/snapshot/snapshot-1").rename(tmp_path / "t/changelog/changelog-1")
    table = kt.open_table(tmp_path / "t")
    assert lines_of_changes(table.changes(0, mode="changelog")) == before
    with pytest.raises(kt.NotFoundError, match="no snapshot 1; snapshots 2 to 2 exist"):
        table.changes(1)


# -- what cannot be told ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((2, 1), kt.InvalidError, "after snapshot 2 up to 1: the start is later than the end"),
        ((3,), kt.NotFoundError, "no snapshot 3; snapshots 1 to 2 exist"),
        ((3, None, "delta"), kt.NotFoundError, "no snapshot 3; snapshots 1 to 2 exist"),
        ((0, 9), kt.NotFoundError, "no snapshot 9; snapshots 1 to 2 exist"),
        (("gone",), kt.NotFoundError, "no tag 'gone'; existing tags: none"),
        ((-1,), kt.InvalidError, "start is -1; give a snapshot id, 0 for the beginning"),
        ((True,), kt.InvalidError, "start is True of type bool"),
        ((0, 1, "dif"), kt.InvalidError, "mode is 'dif'; expected one of 'diff', 'delta'"),
        ((0, 1, "changelog"), kt.InvalidError, "'changelog-producer' is 'none'. mode='diff'"),
    ],
)
def test_changes_that_cannot_be_told_are_refused(
    arguments: Any, error: type[Exception], message: str
) -> None:
    table = numbered(empty_lake())
    table.write([{"k": 1, "v": "a"}])
    table.write([{"k": 1, "v": "b"}])
    with pytest.raises(error, match=re.escape(message)):
        table.changes(*arguments)


def test_a_table_that_nobody_wrote_to_has_no_changes() -> None:
    table = numbered(empty_lake())
    assert table.changes(0).to_pylist() == []
    assert table.changes(0, mode="delta").to_arrow().column_names == ["_row_kind", "k", "v"]
    with pytest.raises(kt.NotFoundError, match="no snapshot 1; it has no snapshots"):
        table.changes(1)
