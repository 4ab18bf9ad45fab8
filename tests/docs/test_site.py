"""The built site: what newcomers ask is found, and nothing is asked of other hosts.

`make docs` builds it and runs this.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
QUESTIONS = json.loads((Path(__file__).parent / "questions.json").read_text())

pytestmark = pytest.mark.site


@cache
def _documents() -> list[dict[str, Any]]:
    index = json.loads((SITE / "search/search_index.json").read_text())
    return [{**each, "title": _words(each["title"]), "text": _words(each["text"])}
            for each in index["docs"]]  # fmt: skip


def _words(text: str) -> str:
    """A text without its tags, which the search of the theme does not look at either."""
    return re.sub(r"<[^>]+>", " ", text)


@cache
def _index() -> Any:
    from lunr import lunr

    documents = [
        ({**document, "id": place}, {"boost": document.get("boost", 1)})
        for place, document in enumerate(_documents())
    ]
    fields = [{"field_name": "title", "boost": 1_000}, {"field_name": "text", "boost": 1}]
    return lunr(ref="id", fields=fields, documents=documents)


def found_pages(question: str) -> list[str]:
    """The pages of the site that a search finds, the best first, each once."""
    words = re.sub(r"[^\w ]", " ", question)
    places = (int(result["ref"]) for result in _index().search(words))
    pages = (_documents()[place]["location"].partition("#")[0] for place in places)
    return list(dict.fromkeys(pages))


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked["question"])
def test_question_finds_its_page_among_the_first_three(asked: dict[str, Any]) -> None:
    first = found_pages(asked["question"])[:3]
    assert {*asked["pages"]} & {*first}, first


def test_twenty_questions_are_asked() -> None:
    assert len(QUESTIONS) >= 20


_ASSET = re.compile(
    r"""<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=["']?((?:https?:)?//[^"' >]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon|dns-prefetch|modulepreload))"""
    r"""[^>]*\bhref=["']?((?:https?:)?//[^"' >]+)"""
)


def test_pages_ask_no_other_host_for_anything() -> None:
    asked = [
        f"{page.relative_to(SITE)}: {found[1] or found[2]}"
        for page in SITE.rglob("*.html")
        for found in _ASSET.finditer(page.read_text())
    ]
    assert asked == []


def test_styles_and_scripts_ask_no_other_host_for_anything() -> None:
    asked = [
        f"{path.relative_to(SITE)}: {found}"
        for path in [*SITE.rglob("*.css"), *SITE.rglob("*.js")]
        for found in re.findall(
            r"""(?:url\(|@import |importScripts\(|fetch\()["']?((?:https?:)?//[^"')]+)""",
            path.read_text(),
        )
    ]
    assert asked == []


def test_every_picture_of_the_documents_is_in_the_site() -> None:
    pictures = {path.name for path in (ROOT / "docs/images").glob("*.svg")}
    assert pictures <= {path.name for path in (SITE / "images").glob("*.svg")}


def test_methods_that_are_made_of_verbs_are_in_the_reference() -> None:
    table = (SITE / "api/table.html").read_text()
    missing = [
        name
        for name in ("create_tag", "rollback_to", "expire_snapshots", "create_branch", "doctor")
        if f'id="keytide.lake.table.Table.{name}"' not in table
    ]
    assert missing == []


def test_results_are_shown_as_dataclasses() -> None:
    results = (SITE / "api/results.html").read_text()
    _, _, written = results.partition('<h2 id="keytide.commit.transaction.WriteResult"')
    assert "doc-label-dataclass" in written.partition("</h2>")[0]
