"""Commands that the documents show exist, with the options that they are shown with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from command_line import whole_command_line
from consoles import commands
from pages import PAGES, README, blocks_of

GROUP: Any = whole_command_line()
INLINE = re.compile(r"(?<!`)`(keytide [^`\n]+)`(?!`)")


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """The commands of keytide in the blocks and lines of a page, with where they stand."""
    for page in (README, *sorted(PAGES.rglob("*.md"))):
        blocks = [block.code for block in blocks_of(page, ["console"])]
        for words in chain.from_iterable(map(commands, blocks + INLINE.findall(page.read_text()))):
            words = words[next((at for at, word in enumerate(words) if "=" not in word), 0) :]
            if words[:1] == ["keytide"] and "[OPTIONS]" not in words:
                yield page.relative_to(PAGES.parent).as_posix(), words[1:]


def unknown(words: list[str]) -> Iterator[str]:
    """What of a command is not there."""
    command = GROUP
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+", word):
            options = {
                name for each in command.params for name in (*each.opts, *each.secondary_opts)
            }
            if word.partition("=")[0] not in {*options, "-h", "--help"}:
                yield word
        elif hasattr(command, "commands") and word in command.commands:
            command = command.commands[word]
    if hasattr(command, "commands") and not words[-1].startswith("-"):
        yield " ".join(words)


def test_commands_are_shown() -> None:
    assert len(list(shown_commands())) > 60


@pytest.mark.one_in(14)
@pytest.mark.parametrize("page", sorted({page for page, _ in shown_commands()}))
def test_commands_of_page_exist_with_their_options(page: str) -> None:
    wrong = [(words, [*unknown(words)]) for of, words in shown_commands() if of == page]
    assert [each for each in wrong if each[1]] == []


def test_a_command_that_is_not_there_is_told() -> None:
    assert [*unknown(["scna", "t"])] == ["scna t"]
    assert [*unknown(["scan", "t", "--lmit", "3"])] == ["--lmit"]
