"""What the pages show."""

from __future__ import annotations

import importlib
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient
from ui_requests import Browse, form

import keytide as kt
from keytide.ui.http import table_address


class Seen(HTMLParser):
    """The text of a page, and the elements that it has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def page_at(client: TestClient, path: str) -> Seen:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return Seen(answer.text)


def test_tables_are_listed_with_what_they_are(page: TestClient) -> None:
    text = page_at(page, "/").text
    for told in (
        "3 names",
        "shop.log",
        "append",
        "shop.open",
        "view",
        "shop.orders",
        "primary key",
    ):
        assert told in text


def test_tables_are_found_by_a_part_of_their_names(page: TestClient) -> None:
    text = page_at(page, "/?search=ORD&database=shop").text
    assert "1 name with" in text
    assert "shop.log" not in text


def test_overview_tells_columns_schemas_and_figures(page: TestClient) -> None:
    text = page_at(page, "/table/shop.orders").text
    for told in (
        "what was ordered",
        "BIGINT",
        "primary key",
        "column note STRING added",
        "Schema 1",
    ):
        assert told in text


def test_health_is_what_the_doctor_says(page: TestClient, shown: kt.Lake) -> None:
    text = page_at(page, "/table/shop.orders/health").text
    assert all(sign.found in text for sign in shown.table("shop.orders").doctor().signs)


def test_timeline_tells_of_every_commit_with_its_tags_and_branches(page: TestClient) -> None:
    found = page_at(page, "/table/shop.orders/timeline")
    rows = [given["id"] for tag, given in found.elements if tag == "tr" and "id" in given]
    assert rows == ["snapshot-3", "snapshot-2", "snapshot-1"]
    assert "first" in found.text
    assert "trial" in found.text
    assert "delete" in found.text


def test_branch_has_a_timeline_of_its_own(page: TestClient) -> None:
    found = page_at(page, "/table/shop.orders%24branch_trial/timeline")
    assert "snapshot-3" not in {given.get("id") for _, given in found.elements}


def test_layout_draws_the_runs_and_lists_the_files(page: TestClient, shown: kt.Lake) -> None:
    found = page_at(page, "/table/shop.orders/layout")
    files = shown.sql("SELECT file_path FROM shop.orders$files").to_pylist()
    assert files
    assert all(file["file_path"].rpartition("/")[2] in found.text for file in files)


def test_next_compaction_is_marked(browse: Browse, lake: kt.Lake) -> None:
    options = {"bucket": "1", "write-only": "true"}
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"], options=options)
    for start in range(6):
        table.write([{"k": start * 10 + n} for n in range(10)])
    text = page_at(browse(lake), "/table/default.t/layout").text
    assert "Due: the framed runs move to level 5" in text


def test_dead_rows_are_counted(browse: Browse, lake: kt.Lake) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": "true"}
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"], options=options)
    table.write([{"k": n} for n in range(100)])
    table.write([{"k": n} for n in range(7)])
    text = page_at(browse(lake), "/table/default.t/layout").text
    assert re.search(r"level 5.* 100 7 0 ", text) or "7 dead" in text


def test_changes_show_both_images_and_mark_what_differs(page: TestClient) -> None:
    answer = page.get("/table/shop.orders/changes?start=1&end=2").text
    text = Seen(answer).text
    assert "+I 1 +U 1 -U 1" in text
    assert answer.count("differs") == 2  # status and qty, and not the key


def test_story_tells_of_every_version_and_where_values_are_from(page: TestClient) -> None:
    text = page_at(page, "/table/shop.orders/why?key=2").text
    assert "2 stored versions" in text
    assert "status paid version 2" in text


def test_story_of_the_past_and_of_a_key_that_was_deleted(page: TestClient) -> None:
    assert (
        "status new version 1" in page_at(page, "/table/shop.orders/why?key=2&snapshot=first").text
    )
    assert "There is no row" in page_at(page, "/table/shop.orders/why?key=3").text
    assert "No version of this key is stored" in page_at(page, "/table/shop.orders/why?key=77").text


def test_streams_tell_of_consumers(page: TestClient) -> None:
    text = page_at(page, "/table/shop.orders/streams").text
    assert "reader 3 1 snapshot" in text


def test_streams_tell_the_offsets_of_topics_without_a_broker(
    browse: Browse, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "kafka")
    fake = importlib.import_module("fake")
    held = {"prices": fake.FakeTopic(partitions=[[(b"k-7", b'{"price": 3}')]])}
    with monkeypatch.context() as patched:
        patched.setattr("keytide.feeds.kafka.ingest.Client", lambda *given: fake.FakeKafka(held))
        kt.connect(warehouse).ingest(
            "t", "kafka://localhost:9092/prices", format="json", primary_key=["sku"]
        )
    text = page_at(browse(kt.connect(warehouse)), "/table/default.t/streams").text
    assert "prices 0 1" in text


def test_table_of_another_engine_is_listed_and_read_by_sql(
    browse: Browse, warehouse: str, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    pq.write_table(pa.table({"k": [1, 2]}), theirs / "a.parquet")
    lake = kt.connect(warehouse)
    lake.create_external_table(
        "x.theirs", format="parquet", location=theirs, primary_key=["k"],
        options={"upsert.on-tie": "error"},
    )  # fmt: skip
    client = browse(lake)
    assert "x.theirs external k" in page_at(client, "/").text
    assert "another engine writes its rows" in client.get("/table/x.theirs/timeline").text
    assert "2 rows" in client.post("/sql", data=form(text="SELECT * FROM x.theirs")).text


def test_every_page_has_landmarks_labels_and_scopes(page: TestClient) -> None:
    for path in ("/", "/table/shop.orders", "/table/shop.orders/timeline", "/sql"):
        found = page_at(page, path).elements
        tags = [tag for tag, _ in found]
        assert tags.count("main") == tags.count("h1") == tags.count("header") == 1
        assert all("scope" in given for tag, given in found if tag == "th")
        labelled = {given.get("for") for tag, given in found if tag == "label"}
        for tag, given in found:
            if tag in ("input", "select", "textarea") and given.get("type") != "hidden":
                assert given["id"] in labelled or given.get("aria-label")
        assert not [given for _, given in found if "style" in given or "onclick" in given]


def test_part_that_follows_is_answered_only_when_something_changed(
    browse: Browse, lake: kt.Lake
) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    client, path = browse(lake), "/table/default.t/timeline/now"
    first = client.get(path)
    again = client.get(path, headers={"if-none-match": first.headers["etag"]})
    table.write([{"k": 1}])
    moved = client.get(path, headers={"if-none-match": first.headers["etag"]})
    table.create_tag("x")
    tagged = client.get(path, headers={"if-none-match": moved.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert 'id="snapshot-1"' not in first.text
    assert 'id="snapshot-1"' in moved.text
    assert tagged.status_code == 200


def test_table_that_is_written_to_and_dropped_meanwhile(browse: Browse, lake: kt.Lake) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    client = browse(lake)
    for number in range(1, 4):
        table.write([{"k": number}])
        assert f'id="snapshot-{number}"' in client.get("/table/default.t/timeline").text
    lake.drop_table("t")
    assert client.get("/table/default.t/timeline").status_code == 404


NAMES = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE x; --",
    "a&amp;b 100% {{ 7*7 }}",
    "\u202emirrored\u2066",
    "日本語 é ñ",
]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", NAMES)
def test_names_and_values_that_look_like_markup_are_shown_as_they_are(
    browse: Browse, lake: kt.Lake, name: str
) -> None:
    table = lake.create_table(
        f"d{name.replace('.', '').replace('/', '')}.t{name.replace('.', '').replace('/', '')}",
        pa.schema([("k", pa.string()), (name, pa.string())]), ["k"], comment=name,
    )  # fmt: skip
    table.write([{"k": name, name: name}], commit_user=name, commit_identifier=1)
    if name.isprintable() and "/" not in name:
        table.create_tag(name.replace(",", ""))
    client, address = browse(lake), table_address(table.name)
    steering = "\u202e" in name
    key = quote(name, safe="")
    views = ("", "/timeline", "/layout", "/streams", "/changes?start=0", f"/why?key={key}")
    for path in ("/", *(address + view for view in views)):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        found = Seen(answer.text)
        scripts = [given for tag, given in found.elements if tag == "script"]
        assert scripts == [{"src": "/static/page.js", "defer": None}], path
        assert not [tag for tag, given in found.elements if "onerror" in given]
        if path != "/" and not path.endswith(("layout", "streams")):
            shown = name if not steering else name.replace("\u202e", "\\u202e")
            assert " ".join(shown.replace("\u2066", "\\u2066").split()) in found.text, path
        if steering:
            assert "\u202e" not in re.sub(r'value="[^"]*"', "", answer.text)


def test_sql_that_looks_like_markup_comes_back_as_it_was(page: TestClient) -> None:
    text = "SELECT '</textarea><script>x</script>' AS \"<b>\" -- \u202e"
    answer = page.post("/sql", data=form(text=text))
    assert "<script>x" not in answer.text
    assert text in "".join(Seen(answer.text).pieces)
