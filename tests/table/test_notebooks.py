"""What objects show of themselves in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import keytide

HOSTILE = "<b>&\"'"


class _Cells(HTMLParser):
    """The texts of table cells, as a browser shows them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_notebook_shows_names_as_they_are_whatever_is_in_them(tmp_path: Path) -> None:
    lake = keytide.connect(tmp_path / "lake")
    lake.sql(
        f"CREATE TABLE t (id BIGINT, `{HOSTILE}` STRING, dt STRING, "
        "PRIMARY KEY (id, dt) NOT ENFORCED) PARTITIONED BY (dt)"
    )
    table = lake.table("t")
    shown = table._repr_html_()
    assert HOSTILE not in shown
    assert _Cells(shown).cells == [
        *("column", "type", "role"),
        *("id", "BIGINT NOT NULL", "primary key"),
        *(HOSTILE, "STRING", ""),
        *("dt", "STRING NOT NULL", "primary key partition"),
    ]
    assert HOSTILE in _Cells(table.scan()._repr_html_()).cells
    assert "<li>default.t</li>" in lake._repr_html_()


def test_notebook_shows_what_a_write_did(tmp_path: Path) -> None:
    lake = keytide.connect(tmp_path / "lake")
    lake.sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    result = lake.table("t").write([{"id": 1}, {"id": 2}])
    assert _Cells(result._repr_html_()).cells == [
        *("snapshot_id", "rows", "rows_stored", "files", "is_new", "out_of_order", "errors"),
        *("bytes", "retries", "milliseconds"),
        *("1", "2", "2", "1", "True", "None", "None"),
        *(str(result.bytes), "0", str(result.milliseconds)),
    ]
