"""Documents, docstrings, comments and messages use the words of the field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prose import Passage, passages_of_markdown, passages_of_python, sentences

from pages import PAGES

ROOT = PAGES.parent
WORDS = {
    r"\btold (?:of|apart)\b": "reported, emitted, distinguished",
    r"\b(?:is|are|was|were|be|been) told\b": "is reported, is returned",
    r"\btells? of\b": "reports, describes",
    r"\bwithout a word\b": "without a warning",
    r"\bin silence\b": "silently",
    r"\btexts\b": "strings",
    r"\bcomes? twice\b": "is duplicated",
    r"\bleft out:": "default:",
    r"\bwhole numbers?\b": "integer",
    r"\bothers (?:keep|have made)\b": "of other engines, external",
    r"\bmade anew\b": "recreated",
    r"\banew\b": "again",
    r"\bheld to\b": "checked against",
    r"\bacted on\b": "applied",
    r"\b(?:rows?|keys?) comes?\b(?! (?:back|after|first|from|in|last|out|once|through))": "arrive",
    r"\bbec[ao]mes? of\b": "what happens to",
    r"\blooks? at the (?:store|table)\b": "reads",
    r"\bof late\b(?! rows)": "recently",
    r"\bin the midst\b": "during, in the middle of",
    r"\bletter case does not\b": "case-insensitive",
    r"\bways? out\b": "how to fix it",
    r"\bbeside\b": "next to, in addition to",
    r"\bup to then\b": "until then",
    r"\bshall\b": "must, will",
    r"\bstands? for\b": "means",
    r"\b(?:is|are) asked for\b": "is requested",
}
LONGEST = 45
"""Words of a sentence; what is code counts as one."""


@cache
def prose() -> tuple[Passage, ...]:
    return tuple(_passages())


def _passages() -> Iterator[Passage]:
    for page in (*PAGES.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/README.md")):
        if page.name != "CHANGELOG.md":
            yield from passages_of_markdown(page)
    for module in (*ROOT.glob("src/**/*.py"), *ROOT.glob("examples/*.py")):
        yield from passages_of_python(module)


def private_words(passage: Passage) -> Iterator[str]:
    text = " ".join(sentences(passage.text))
    for pattern, better in WORDS.items():
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield f"{_place(passage)}: {found[0]!r}; say {better}: ...{text[: found.end()][-60:]}"


def long_sentences(passage: Passage) -> Iterator[str]:
    for sentence in sentences(passage.text):
        if (words := len(re.findall(r"\w\S*", sentence))) > LONGEST:
            yield f"{_place(passage)}: {words} words: {sentence[:80]}..."


def _place(passage: Passage) -> str:
    return f"{passage.path.relative_to(ROOT)}:{passage.line}"


@pytest.mark.parametrize("wrong", [private_words, long_sentences], ids=lambda find: find.__name__)
def test_prose_is_plain(wrong: object) -> None:
    assert callable(wrong)
    found = [line for passage in prose() for line in wrong(passage)]
    assert found == [], "\n".join(found)


def test_private_words_and_long_sentences_are_found() -> None:
    path = Path(__file__)
    said = Passage(path, 1, "A changelog tells of `made anew` rows, without a word.")
    assert [line.partition("; ")[0].rpartition(": ")[2] for line in private_words(said)] == [
        "'tells of'", "'without a word'",
    ]  # fmt: skip
    assert [*long_sentences(Passage(path, 1, "word " * 46))] != []
    assert [*long_sentences(Passage(path, 1, "`a b` " * 45 + "\n\n- " + "word " * 45))] == []
