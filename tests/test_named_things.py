"""Private names that docstrings and comments of the source mention in backticks exist."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PRIVATE = re.compile(r"(?<!`)`(_[a-z]\w+)(?:\(\))?`")


def texts_and_code() -> Iterator[tuple[Path, str, bool]]:
    """Every docstring and comment, and every name and string of the code."""
    for path in sorted(SOURCE.rglob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            is_prose = token.type == tokenize.COMMENT or (
                token.type == tokenize.STRING and token.string.lstrip("rRbB").startswith('"""')
            )
            yield path, token.string, is_prose


def test_private_names_in_docstrings_and_comments_exist() -> None:
    known: set[str] = set()
    named: dict[str, Path] = {}
    for path, text, is_prose in texts_and_code():
        if is_prose:
            named |= dict.fromkeys(PRIVATE.findall(text), path)
        else:
            known.update(re.findall(r"\w+", text))
    unknown = {name: str(path) for name, path in named.items() if name not in known}
    assert unknown == {}
