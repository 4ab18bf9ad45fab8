"""The doctor: each sign of a table that is not well, with what to do, and pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from keytide.store import LocalStore

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
SIGNS = [
    "small files", "sorted runs", "skew", "tombstones", "snapshots", "branches", "manifests"
]  # fmt: skip


def table_of(folder: Path, commits: int, key: tuple[str, ...] = ("k",), **options: str) -> kt.Table:
    """A table of as many commits, to each of which every key comes anew."""
    given = {name.replace("_", "-").replace("--", "."): text for name, text in options.items()}
    table = kt.connect(folder).create_table("t", SCHEMA, list(key), options=given)
    for commit in range(commits):
        table.write([{"k": k, "v": f"{commit}"} for k in range(4)])
    return table


def actions(table: kt.Table) -> dict[str, str]:
    """What is to be done, by the sign."""
    return {sign.subject: sign.action for sign in table.doctor().signs if sign.action is not None}


def test_table_that_is_well_has_nothing_to_do(tmp_path: Path) -> None:
    diagnosis = table_of(tmp_path, 2).doctor()
    assert [sign.subject for sign in diagnosis.signs] == SIGNS
    assert (diagnosis.is_healthy, actions(table_of(tmp_path / "empty", 0))) == (True, {})


def test_many_sorted_runs_are_to_be_compacted_and_then_are_not(tmp_path: Path) -> None:
    table = table_of(tmp_path, 8, write_only="true")
    assert list(actions(table)) == ["sorted runs"]
    assert "compact()" in actions(table)["sorted runs"]
    table.compact()
    assert actions(table) == {}


def test_many_small_files_are_to_be_compacted_and_then_are_not(tmp_path: Path) -> None:
    table = table_of(tmp_path, 12, write_only="true")
    assert "compact(full=True)" in actions(table)["small files"]
    table.compact(full=True)
    assert actions(table) == {}


def test_small_files_of_an_append_table_are_to_be_compacted(tmp_path: Path) -> None:
    table = table_of(tmp_path, 12, key=())
    assert list(actions(table)) == ["small files"]
    assert "compact(full=True)" in actions(table)["small files"]
    table.compact(full=True)
    assert actions(table) == {}


def test_many_tombstones_are_to_be_forgotten_and_then_are(tmp_path: Path) -> None:
    table = table_of(tmp_path, 1)
    table.write([{"k": k, "_row_kind": "-D"} for k in range(3)])
    assert "compact(full=True)" in actions(table)["tombstones"]
    table.compact(full=True)
    assert actions(table) == {}


def test_tombstones_that_are_kept_for_ever_are_told_with_their_option(tmp_path: Path) -> None:
    table = table_of(tmp_path, 1, sequence__field="v", tombstone__retention="forever")
    table.write([{"k": k, "v": "9", "_row_kind": "-D"} for k in range(3)])
    assert "tombstone.retention" in actions(table)["tombstones"]


def test_one_bucket_beyond_all_others_is_told(tmp_path: Path) -> None:
    schema = pa.schema([("b", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
    options = {"bucket": "8", "bucket-key": "b", "target-file-size": "1 kb"}
    table = kt.connect(tmp_path).create_table("t", schema, ["b", "k"], options=options)
    table.write([{"b": 1, "k": k, "v": f"{k * 7919 % 10_007}"} for k in range(3_000)])
    assert "bucket-key" in actions(table)["skew"]


def test_many_manifests_are_told_with_the_option_that_merges_them(tmp_path: Path) -> None:
    table = table_of(tmp_path, 9)
    table.metadata.schema(0)
    kt.connect(tmp_path).sql("ALTER TABLE t SET ('manifest.merge-min-count' = '2')")
    found = {sign.subject: sign for sign in table.doctor().signs}
    assert found["manifests"].action is not None
    assert "manifest.merge-min-count" in found["manifests"].action


# -- pictures ------------------------------------------------------------------------------------


def test_picture_shows_levels_files_and_cost(tmp_path: Path) -> None:
    table = table_of(tmp_path, 6)
    figure = table.plot()
    titles = {axes.get_title() for axes in figure.axes}
    assert {"Levels of 1 bucket", "Write amplification", "Files over time"} <= titles
    files = next(axes for axes in figure.axes if axes.get_title() == "Files over time")
    newest = files.get_lines()[0].get_ydata()[-1]
    assert newest == len(table.scan().live.entries)
    figure.savefig(tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_table_that_nobody_wrote_to_has_a_picture(tmp_path: Path) -> None:
    assert table_of(tmp_path, 0).plot().axes


def test_without_matplotlib_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "keytide.lake.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(kt.SetupError, match=r"pip install 'keytide\[plot\]'"):
        table_of(tmp_path, 0).plot()


def test_list_of_snapshots_is_a_table_in_a_notebook(tmp_path: Path) -> None:
    shown = table_of(tmp_path, 2).snapshots()._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<td>APPEND</td><td>4</td><td>8</td>" in shown


def test_store_is_only_read(tmp_path: Path) -> None:
    table = table_of(tmp_path, 2)
    before = sorted((each.path, each.size, each.modified_ms) for each in table.stored.store.list())
    table.doctor()
    table.verify()
    after = LocalStore(table.uri.removeprefix("file://")).list()
    assert before == sorted((each.path, each.size, each.modified_ms) for each in after)
