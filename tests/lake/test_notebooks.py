"""What objects show of themselves in a notebook."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import keytide
from busy import Others, busy_store
from keytide.lake.display import table_html
from keytide.maintenance.history import HistoryEntry
from keytide.maintenance.overviews import (
    GLANCE,
    Layout,
    TableSummary,
    Timeline,
    TimelineEntry,
    table_summary,
)
from keytide.show.buckets import Bucket, BucketLine, Part, Run
from keytide.store import open_store

HOSTILE = "</style></svg><script>x</script><b>&\"'"


class _Page(HTMLParser):
    """The tags, texts of table cells, and the rest of the text, as a browser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += f"{data}\n"
        if {"td", "th"} & set(self.open) and "svg" not in self.open:
            self.cells[-1] += data


def shop(folder: Path) -> keytide.Table:
    """A table whose names and values are markup, with inserts, updates and a delete."""
    lake = keytide.connect(folder / "lake")
    lake.sql(
        f"CREATE TABLE t (id STRING, `{HOSTILE}` STRING, PRIMARY KEY (id) NOT ENFORCED) "
        f"WITH ('bucket' = '1', 'write-only' = 'true')"
    )
    table = lake.table("t")
    for value in ("a", HOSTILE):
        table.write([{"id": HOSTILE, HOSTILE: value}, {"id": "2", HOSTILE: "same"}])
    table.create_tag("<i>tag")
    table.write([
        {"id": "2", HOSTILE: None, "_row_kind": "-D"},
        {"id": "3", HOSTILE: None, "_row_kind": "+I"},
    ])  # fmt: skip
    return table


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each object shows."""
    table = shop(tmp_path_factory.mktemp("shop"))
    scan = table.scan(where=f"id > '<' AND `{HOSTILE}` = 'a'")
    objects = {
        "table": table, "scan": scan, "plan": scan.explain(), "why": table.why(HOSTILE),
        "changes": table.changes(1), "plan of changes": table.changes(1).explain(),
        "doctor": table.doctor(),
    }  # fmt: skip
    return {name: each._repr_html_() for name, each in objects.items()}


OBJECTS = ("table", "scan", "plan", "why", "changes", "plan of changes", "doctor")


@pytest.mark.parametrize("name", OBJECTS)
def test_markup_in_names_and_values_is_shown_as_text(shown: dict[str, str], name: str) -> None:
    page = _Page(shown[name])
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "b", "i", "img", "a", "link", "iframe"}
    assert shown[name].count("<style>") == 1
    if name in ("table", "scan", "why", "changes"):
        assert HOSTILE in page.text


@pytest.mark.parametrize("name", OBJECTS)
def test_output_asks_for_nothing_and_styles_itself_alone(shown: dict[str, str], name: str) -> None:
    assert not re.search(r"https?:|url\(|@import|src=|href=|\son\w+=", shown[name])
    style = re.search(r"<style>(.*?)</style>", shown[name], re.DOTALL)
    assert style is not None
    rules = re.sub(r"@media \([^)]*\)\{([^{}]*\{[^{}]*\})\}", r"\1", style[1])
    selectors = [each for rule in re.findall(r"([^{}]+)\{", rules) for each in rule.split(",")]
    assert len(selectors) > 100
    assert [each for each in selectors if ".keytide" not in each] == []
    # What the notebook's own style says of tables and lists is undone before ours begins.
    assert 0 < style[1].index("{all:revert}") < style[1].index(".keytide.keytide .rows")


@pytest.mark.parametrize("name", OBJECTS)
def test_pictures_and_tables_are_accessible(shown: dict[str, str], name: str) -> None:
    tags = _Page(shown[name]).tags
    following = pairwise(tags)
    assert [
        svg for (tag, svg), (after, _) in following
        if tag == "svg" and (svg["role"], after) != ("img", "title")
    ] == []  # fmt: skip
    assert all(given["scope"] in ("col", "row") for tag, given in tags if tag == "th")
    assert len(shown[name]) < 40_000


def test_table_shows_columns_snapshots_tags_buckets_and_runs(shown: dict[str, str]) -> None:
    page = _Page(shown["table"])
    assert page.cells[:9] == [
        *("Column", "Type", "Role"),
        *("id", "STRING NOT NULL", "primary key"),
        *(HOSTILE, "STRING", ""),
    ]
    assert "Latest 3 snapshots" in page.text
    assert "tags: <i>tag" in page.text
    assert "snapshot 3, write: 1 rows written, 1 deleted" in page.text
    assert "3 sorted runs of \nbucket-0" in page.text


def test_plan_shows_files_that_each_stage_pruned(shown: dict[str, str]) -> None:
    for name in ("scan", "plan"):
        page = _Page(shown[name])
        assert "3 of 3 files kept" in page.text
        assert "2 of 3 files kept" in page.text
        assert "files skipped by: `id` > '<'" in page.text
    assert "Buckets that are read" in shown["scan"]


def test_story_shows_versions_in_the_order_of_the_merge(shown: dict[str, str]) -> None:
    text = _Page(shown["why"]).text
    assert text.index("Version 1") < text.index("replaced by version 2") < text.index("Version 2")
    assert " (in the row)" in text


def test_changes_show_the_old_value_next_to_the_new_one(shown: dict[str, str]) -> None:
    page = _Page(shown["changes"])
    assert "4 changed rows. By kind: +I 1, +U 1, -D 1, -U 1" in page.text
    rows = {tuple(page.cells[at : at + 3]) for at in range(3, len(page.cells), 3)}
    assert rows == {
        ("-U +U update", HOSTILE, f"a → {HOSTILE}"),
        ("-D delete", "2", "same"),
        ("+I insert", "3", "NULL"),
    }


def test_health_shows_severity_and_what_to_do(tmp_path: Path) -> None:
    lake = keytide.connect(tmp_path / "lake")
    lake.sql("CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('write-only' = 'true')")
    table = lake.table("t")
    for _ in range(7):
        table.write([{"id": 1}])
    cells = _Page(table.doctor()._repr_html_()).cells
    at = cells.index("sorted runs")
    assert cells[at + 1] == "act"
    assert cells[at + 4].startswith("Call compact()")
    assert cells[cells.index("skew") + 1] == "ok"


def test_what_cannot_be_read_is_said_next_to_what_can(tmp_path: Path) -> None:
    table = shop(tmp_path)
    scan, changes = table.scan(), table.changes(1)
    assert not scan._repr_html_().count("could not be read")
    for manifest in (tmp_path / "lake/default.db/t/manifest").iterdir():
        manifest.unlink()
    other = tmp_path / "copied"
    shutil.copytree(tmp_path / "lake", other)
    torn = keytide.connect(other).table("t")
    page = _Page(torn._repr_html_())
    assert "This could not be read: " in page.text
    assert "manifest" in page.text
    assert page.cells[:4] == ["Column", "Type", "Role", "id"]
    shutil.rmtree(other)
    gone = _Page(torn._repr_html_())
    assert "default.t" in gone.text
    assert "This could not be read: " in gone.text
    for data in (tmp_path / "lake/default.db/t").rglob("*.parquet"):
        data.unlink()
    assert "This could not be read: " in changes._repr_html_()


def test_table_is_shown_at_one_moment_however_much_others_commit(tmp_path: Path) -> None:
    table = shop(tmp_path)
    others = Others(lambda: table.write([{"id": "9", HOSTILE: "others"}]), lambda n: n % 3 == 2)
    store = busy_store(open_store(str(tmp_path / "lake")), others)
    seen = table_summary(keytide.connect(tmp_path / "lake", store=store).table("t").stored)
    assert seen.problems == ()
    assert seen.timeline is not None
    assert seen.layout is not None
    newest = seen.timeline.newest_id
    assert newest is not None
    assert newest < (table.metadata.latest_snapshot_id() or 0)
    assert [moment.entry.snapshot_id for moment in seen.timeline.entries] == [*range(newest, 0, -1)]
    assert seen.layout.bucket is not None
    assert len(seen.layout.bucket.runs) == newest


def test_table_of_many_columns_tags_and_files_shows_a_bounded_page(tmp_path: Path) -> None:
    table = shop(tmp_path)
    schema, long = table.table_schema, "<" * 10_000
    fields = [replace(schema.fields[1], id=n, name=f"{n}{long}") for n in range(2_000)]
    moments = tuple(_moments(long))
    line = BucketLine(0, long, 10, 10, 10, tuple((level, 10) for level in range(6)), is_due=True)
    part = Part(f"data-{'0' * 40}.parquet", 10**9, 10**6, 10**6, 10**12, 0.0, 1.0, (long, long))
    run = Run(0, 10**12, 10**9, 10**6, 20, (part,) * GLANCE.parts, 0)
    bucket = Bucket(line, (run,) * GLANCE.runs, 0, (5,), long, long)
    layout = Layout((line,) * GLANCE.buckets, bucket, 1, 9, 2_000, 10, 5, None)
    timeline = Timeline(moments, (), (), 0, 1, 10_000, 10_001, 9_000, None)
    shown = table_html(
        long, long, TableSummary(replace(schema, fields=tuple(fields)), timeline, layout, ())
    )
    assert len(shown.encode()) < 200_000
    assert "1,940 more columns" in shown
    assert "1,992 smaller buckets not shown" in shown


def _moments(name: str) -> Iterator[TimelineEntry]:
    for number in range(20):
        time = datetime(2026, 1, 1, tzinfo=timezone.utc)
        entry = HistoryEntry(number, time, name, "write", 1, 1, 1, 1, 1, 1, 1, 0)
        yield TimelineEntry(entry, (name,) * 100, (name,) * 100, is_newest=number == 19)


def test_lake_lists_its_tables(tmp_path: Path) -> None:
    lake = keytide.connect(tmp_path / "lake")
    lake.sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    assert "<li>default.t</li>" in lake._repr_html_()
    assert "Nobody has written to this table yet." in lake.table("t")._repr_html_()


def test_notebook_shows_what_a_write_did(tmp_path: Path) -> None:
    lake = keytide.connect(tmp_path / "lake")
    lake.sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    result = lake.table("t").write([{"id": 1}, {"id": 2}])
    assert _Page(result._repr_html_()).cells == [
        *("snapshot_id", "rows", "rows_stored", "files", "is_new", "out_of_order", "errors"),
        *("bytes", "retries", "milliseconds"),
        *("1", "2", "2", "1", "True", "None", "None"),
        *(str(result.bytes), "0", str(result.milliseconds)),
    ]
