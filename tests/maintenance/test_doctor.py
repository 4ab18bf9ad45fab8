"""The doctor: each sign of a table that is not well, with what to do, and pictures."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from far import far_away
from keytide.store import LocalStore
from new_tables import dotted, empty_store

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
SIGNS = [
    "small files", "sorted runs", "skew", "tombstones", "snapshots", "consumers", "orphans",
    "branches", "manifests", "other engines", "conversion", "publishing",
]  # fmt: skip


def new_table(
    folder: Path, commits: int, key: tuple[str, ...] = ("k",), **options: str
) -> kt.Table:
    """A table of as many commits, to each of which every key comes anew."""
    given = dotted(options)
    table = kt.connect(folder).create_table("t", SCHEMA, list(key), options=given)
    for commit in range(commits):
        table.write([{"k": k, "v": f"{commit}"} for k in range(4)])
    return table


def actions(table: kt.Table) -> dict[str, str]:
    """What is to be done, by the sign."""
    return {sign.subject: sign.action for sign in table.doctor().signs if sign.action is not None}


def test_table_that_is_well_has_nothing_to_do(tmp_path: Path) -> None:
    diagnosis = new_table(tmp_path, 2).doctor()
    assert [sign.subject for sign in diagnosis.signs] == SIGNS
    assert (diagnosis.is_healthy, actions(new_table(tmp_path / "empty", 0))) == (True, {})


def test_many_sorted_runs_are_to_be_compacted_and_then_are_not(tmp_path: Path) -> None:
    table = new_table(tmp_path, 8, write_only="true")
    assert list(actions(table)) == ["sorted runs"]
    assert "compact()" in actions(table)["sorted runs"]
    table.compact()
    assert actions(table) == {}


def test_many_small_files_are_to_be_compacted_and_then_are_not(tmp_path: Path) -> None:
    table = new_table(tmp_path, 12, write_only="true")
    assert "compact(full=True)" in actions(table)["small files"]
    table.compact(full=True)
    assert actions(table) == {}


def test_small_files_of_an_append_table_are_to_be_compacted(tmp_path: Path) -> None:
    table = new_table(tmp_path, 12, key=())
    assert list(actions(table)) == ["small files"]
    assert "compact(full=True)" in actions(table)["small files"]
    table.compact(full=True)
    assert actions(table) == {}


def tombstones(count: int) -> pa.Table:
    """Deletes of as many keys."""
    kinds, values = pa.repeat("-D", count), pa.repeat("9", count)
    return pa.table({"k": range(count), "v": values, "_row_kind": kinds})


def test_few_tombstones_are_well_however_few_the_rows_are(tmp_path: Path) -> None:
    table = new_table(tmp_path, 1)
    table.write(tombstones(10_000))
    assert actions(table) == {}


def test_many_tombstones_are_to_be_forgotten_and_then_are(tmp_path: Path) -> None:
    table = new_table(tmp_path, 1)
    table.write(tombstones(10_001))
    assert "compact(full=True)" in actions(table)["tombstones"]
    table.compact(full=True)
    assert actions(table) == {}


def test_tombstones_that_are_kept_for_ever_are_told_with_their_option(tmp_path: Path) -> None:
    table = new_table(tmp_path, 1, sequence__field="v", tombstone__retention="forever")
    table.write(tombstones(10_001))
    assert "tombstone.retention" in actions(table)["tombstones"]


def test_one_bucket_beyond_all_others_is_told(tmp_path: Path) -> None:
    schema = pa.schema([("b", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
    options = {"bucket": "8", "bucket-key": "b", "target-file-size": "1 kb"}
    table = kt.connect(tmp_path).create_table("t", schema, ["b", "k"], options=options)
    table.write([{"b": 1, "k": k, "v": f"{k * 7919 % 10_007}"} for k in range(3_000)])
    assert "bucket-key" in actions(table)["skew"]


def test_many_manifests_are_told_with_the_option_that_merges_them(tmp_path: Path) -> None:
    table = new_table(tmp_path, 9)
    table.metadata.schema(0)
    kt.connect(tmp_path).sql("ALTER TABLE t SET ('manifest.merge-min-count' = '2')")
    found = {sign.subject: sign for sign in table.doctor().signs}
    assert found["manifests"].action is not None
    assert "manifest.merge-min-count" in found["manifests"].action


# A commit of such a table expires nothing, and all but the newest snapshot should go.
OVERDUE = {"snapshot__num_retained__min": "1", "snapshot__time_retained": "0 ms"}
OVERDUE |= {"snapshot__expire__limit": "2", "write_only": "true"}


def test_snapshots_that_should_have_expired_are_told_with_their_bytes_and_then_are_gone(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path, 5, **OVERDUE)
    (sign,) = [sign for sign in table.doctor().signs if sign.subject == "snapshots"]
    assert re.fullmatch(r"5 snapshots kept, 4 with [\d,]+ bytes can expire", sign.found)
    assert "expire_snapshots()" in actions(table)["snapshots"]
    table.expire_snapshots()
    assert actions(table) == {}


def test_snapshots_that_wait_for_the_next_commit_are_well(tmp_path: Path) -> None:
    assert "snapshots" not in actions(new_table(tmp_path, 3, **OVERDUE))


def test_consumer_that_keeps_many_snapshots_is_named_and_then_forgotten(tmp_path: Path) -> None:
    table = new_table(tmp_path, 2, **OVERDUE)
    next(table.follow(start=1, consumer="slow", timeout_seconds=0))
    for _ in range(4):
        table.write([{"k": 1, "v": "x"}])
    assert {"consumers", "snapshots"} & actions(table).keys() == {"consumers"}
    assert "reset_consumer('slow')" in actions(table)["consumers"]
    table.reset_consumer("slow")
    assert {"consumers", "snapshots"} & actions(table).keys() == {"snapshots"}


def test_consumer_that_keeps_changelogs_alone_is_well(tmp_path: Path) -> None:
    table = new_table(tmp_path, 2, **OVERDUE, consumer__changelog_only="true")
    next(table.follow(start=1, consumer="slow", timeout_seconds=0))
    for _ in range(4):
        table.write([{"k": 1, "v": "x"}])
    assert {"consumers", "snapshots"} & actions(table).keys() == {"snapshots"}


def old_orphan(table: kt.Table) -> None:
    """A file in a bucket of which a table knows nothing."""
    path = Path(table.uri) / "bucket-0/data-old-0.parquet"
    path.write_bytes(b"x" * 1_234)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(path, (two_days_ago, two_days_ago))


def test_orphans_older_than_a_day_are_told_with_their_bytes_and_then_are_gone(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path, 1)
    (Path(table.uri) / "bucket-0/data-young-0.parquet").write_bytes(b"x")
    old_orphan(table)
    found = {sign.subject: sign.found for sign in table.doctor().signs}
    assert found["orphans"] == "1 file of 1,234 bytes"
    assert list(actions(table)) == ["orphans"]
    assert "remove_orphan_files(dry_run=False)" in actions(table)["orphans"]
    table.remove_orphan_files(dry_run=False)
    assert actions(table) == {}


def test_where_something_is_torn_that_names_files_verify_is_to_be_called(tmp_path: Path) -> None:
    table = new_table(tmp_path, 2)
    table.create_tag("a", 1)
    old_orphan(table)
    (Path(table.uri) / "tag/tag-a").write_bytes(b"{")
    assert "verify()" in actions(table)["orphans"]


def test_branch_is_well_or_not_by_itself(tmp_path: Path) -> None:
    table = new_table(tmp_path, 1, write_only="true")
    table.create_branch("b")
    for _ in range(7):
        table.branch("b").write([{"k": 1, "v": "x"}])
    assert actions(table) == {}
    assert list(actions(table.branch("b"))) == ["sorted runs"]


# -- pictures ------------------------------------------------------------------------------------


@pytest.mark.takes_turns
def test_picture_shows_levels_files_and_cost(tmp_path: Path) -> None:
    table = new_table(tmp_path, 6)
    table.close()  # nothing is compacted behind it any more
    figure = table.plot()
    titles = {axes.get_title() for axes in figure.axes}
    assert {"Levels of 1 bucket", "Write amplification", "Files over time"} <= titles
    files = next(axes for axes in figure.axes if axes.get_title() == "Files over time")
    newest = files.get_lines()[0].get_ydata()[-1]
    assert newest == len(table.scan().live.entries)
    figure.savefig(tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_table_that_nobody_wrote_to_has_a_picture(tmp_path: Path) -> None:
    assert new_table(tmp_path, 0).plot().axes


def test_without_matplotlib_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "keytide.lake.display", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(kt.SetupError, match=r"pip install 'keytide\[plot\]'"):
        new_table(tmp_path, 0).plot()


def test_list_of_snapshots_is_a_table_in_a_notebook(tmp_path: Path) -> None:
    shown = new_table(tmp_path, 2).snapshots()._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<td>APPEND</td><td>4</td><td>8</td>" in shown


def test_store_is_only_read(tmp_path: Path) -> None:
    table = new_table(tmp_path, 2)
    before = sorted((each.path, each.size, each.modified_ms) for each in table.stored.store.list())
    table.doctor()
    table.verify()
    after = LocalStore(table.uri.removeprefix("file://")).list()
    assert before == sorted((each.path, each.size, each.modified_ms) for each in after)


# -- stores that are far away ----------------------------------------------------------------------


def test_health_of_many_snapshots_waits_no_longer_than_of_a_few() -> None:
    waits = []
    for commits in (5, 40):
        store = empty_store()
        table = kt.connect(store.uri).create_table("t", SCHEMA, ["k"], options={"bucket": "1"})
        for number in range(commits):
            table.write([{"k": number, "v": "x"}])
        with far_away(0.02) as client, client.counted() as requests:
            kt.connect(store.uri).table("t").doctor()
        waits.append(requests.waits)
    assert waits[1] <= waits[0] + 15, waits
