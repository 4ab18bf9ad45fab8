"""What one server shows, and how its pages are rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from keytide.base.plural import counted
from keytide.format.branch import branched_name, split_branch
from keytide.lake.lake import Lake
from keytide.show.text import ago_text, harmless, size_text
from keytide.types import quoted
from keytide.ui.access import Access
from keytide.ui.address import page_address, table_address
from keytide.ui.running import QUERY_SECONDS_MAX, Runs

__all__ = ["TABLE_TABS", "Site"]

TABLE_TABS = (
    ("overview", "Overview"), ("timeline", "Timeline"), ("layout", "Layout"),
    ("changes", "Changes"), ("why", "Why"), ("streams", "Streams"),
)  # fmt: skip
"""The pages about a table of the lake, with their titles."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Site:
    """A lake, the access to its pages, and whether they can change it."""

    lake: Lake
    access: Access
    allows_changes: bool = False
    runs: Runs = field(default_factory=lambda: Runs(QUERY_SECONDS_MAX))
    """The queries that run now."""

    def page(
        self,
        template: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **shown: Any,
    ) -> HTMLResponse:
        """A page. Values of the view model are escaped, including control characters."""
        text = _TEMPLATES.get_template(template).render(
            lake_uri=self.lake.uri,
            allows_changes=self.allows_changes,
            form_token=self.access.form_token,
            now=datetime.now(timezone.utc),
            **{"view": "", "tabs": TABLE_TABS, **shown},
        )
        return HTMLResponse(text, status, headers)


def _shown(value: object) -> object:
    """A template value for the page; strings without characters that affect later text."""
    return harmless(value) if type(value) is str else value


def _select_text(table: str) -> str:
    """A query of a table, as a first text."""
    return f"SELECT * FROM {'.'.join(map(quoted, table.split('.')))} LIMIT 100"


def _time(time: datetime | None) -> Markup:
    if time is None:
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(
        time.isoformat(), f"{time:%Y-%m-%d %H:%M:%S}Z"
    )


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "ago": ago_text,
        "count": lambda number: f"{number:,}",
        "counted": counted,
        "exact": lambda text: Markup(escape(text)),  # the value of a field goes back as it came
        "size": size_text,
        "time": _time,
    }
    made.globals |= {
        "branch_name": lambda table, branch: branched_name(split_branch(table)[0], branch),
        "page_address": page_address,
        "select_text": _select_text,
        "table_address": table_address,
    }
    return made


_TEMPLATES = _templates()
