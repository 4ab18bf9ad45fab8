"""MkDocs hooks in addition to mkdocs.yml: adds pages of the site whose files are outside docs/.

The changelog, the contributing guide and the page of the benchmarks stay where people expect them
in a checkout. Links in them, and links to them, are rewritten for the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""Files of the checkout and their locations in the site."""

BOOSTS = {"tutorial": 3, "how-to": 2, "concepts": 2, "reference": 2, "design": 0.3, "project": 0.3}
"""The factors by which the search ranks pages of a folder higher or lower."""

_LINK = re.compile(
    r"(?<!\\)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages from outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Rewrite links to pages of the site, and to files that are not pages."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": BOOSTS.get(place.split("/")[0].removesuffix(".md"), 1)}
    source = {page: source for source, page in OUTSIDE.items()}.get(place, f"docs/{place}")

    def mended(found: re.Match[str]) -> str:
        return _link(found, source, place)

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(mended, part) for part in parts)


def _link(found: re.Match[str], source: str, place: str) -> str:
    """The link to a file of the checkout, rewritten for the page at that location."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))
    page = OUTSIDE.get(target) or (target[5:] if target.startswith("docs/") else None)
    if page is None:  # a file or folder of the checkout that is not in the site
        return found["text"]
    relative = posixpath.relpath(page, posixpath.dirname(place) or ".")
    return f"[{found['text']}]({relative}{found['anchor'] or ''})"
