"""The prose of the project: sentences of documents, docstrings, comments and messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Passage", "passages_of_markdown", "passages_of_python", "sentences"]

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"``[^`]+``|`[^`\n]*`|<!--.*?-->|<[^>\n]+>|\]\([^)]*\)", re.DOTALL)
# Listings: lines with columns of words, or ruled lines.
_BLOCK = re.compile(r"^(?:.*\S {2,}\S.*|.*[=┌├└─│-]{3,}.*)$", re.MULTILINE)
_END = re.compile(r"(?<=[.!?;:])[\s\"')*]+(?=[A-Z`*\"(|\[])|\n\s*\n|\n\s*(?:[-*|#]|\d+\.) ?|\|")


@dataclass(frozen=True)
class Passage:
    """Some prose and where it starts."""

    path: Path
    line: int
    text: str


def passages_of_markdown(path: Path) -> Iterator[Passage]:
    """The paragraphs, list items and table cells of a page, without its code."""
    text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip():
            yield Passage(path, line, paragraph)
        line += paragraph.count("\n")


def passages_of_python(path: Path) -> Iterator[Passage]:
    """Docstrings, messages and comments of a module."""
    source = path.read_text()
    tree = ast.parse(source)
    parts = {
        id(part)
        for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }  # fmt: skip
    for node in ast.walk(tree):
        text = None if id(node) in parts else _text_of(node)
        if text is not None and _is_prose(text):
            yield Passage(path, node.lineno, text)  # type: ignore[attr-defined]  # strings have one
    yield from _comments(path, source)


def _text_of(node: ast.AST) -> str | None:
    """A string, with what is formatted into it as code."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) or "`x`" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_prose(text: str) -> bool:
    is_sql = re.search(r"SELECT |CASE\s+WHEN|END AS", text)
    return len(re.findall(r"[A-Za-z]{2,}", text)) > 2 and not is_sql


def _comments(path: Path, source: str) -> Iterator[Passage]:
    block: list[str] = []
    start = end = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != end + 1:
            yield Passage(path, start, "\n".join(block))
            block = []
        if not block:
            start = token.start[0]
        block.append(token.string.lstrip("# "))
        end = token.start[0]
    if block:
        yield Passage(path, start, "\n".join(block))


def sentences(text: str) -> list[str]:
    """The sentences of a passage; what is code becomes one word."""
    parts = _END.split(_CODE.sub(" X ", _BLOCK.sub("\n\n", text)))
    return [" ".join(part.split()) for part in parts if part and part.strip()]
