"""What MkDocs is told beside mkdocs.yml: pages of the site whose text lies outside of docs/.

The changelog, the rules for contributors and the page of the benchmarks stay where people look for
them in a checkout. Links in them, and links to them, are rewritten as those of the site.
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
"""Files of the checkout and their places in the site."""

BOOSTS = {"tutorial": 3, "how-to": 2, "concepts": 2, "reference": 2, "design": 0.3, "project": 0.3}
"""How much higher or lower a search lists pages of a folder than it would otherwise."""

_LINK = re.compile(
    r"(?<!\\)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that lie elsewhere."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Have links name pages of the site, and files that are no pages by their paths alone."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": BOOSTS.get(place.split("/")[0].removesuffix(".md"), 1)}
    source = {page: source for source, page in OUTSIDE.items()}.get(place, f"docs/{place}")

    def mended(found: re.Match[str]) -> str:
        return _link(found, source, place)

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(mended, part) for part in parts)


def _link(found: re.Match[str], source: str, place: str) -> str:
    """The link of a file of the checkout, as one of the page at that place."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))
    page = OUTSIDE.get(target) or (target[5:] if target.startswith("docs/") else None)
    if page is None:  # a file or folder of the checkout, which the site has not
        return found["text"]
    relative = posixpath.relpath(page, posixpath.dirname(place) or ".")
    return f"[{found['text']}]({relative}{found['anchor'] or ''})"
