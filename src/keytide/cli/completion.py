"""Completions at the cursor of the prompt: keywords, tables, and their columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from keytide.errors import KeytideError
from keytide.lake.lake import Lake

__all__ = ["Names"]

KEYWORDS = (
    "ALTER TABLE", "APPLY CHANGES INTO", "AUTO CDC INTO", "CALL", "CREATE DATABASE", "CREATE TABLE",
    "DESCRIBE", "DISTINCT",
    "DROP DATABASE", "DROP TABLE", "EXPLAIN", "FROM", "GROUP BY", "HAVING", "INSERT INTO",
    "INSERT OVERWRITE", "JOIN", "LEFT JOIN", "LIMIT", "NOT ENFORCED", "ORDER BY", "PARTITIONED BY",
    "PRIMARY KEY", "SELECT", "SHOW CREATE TABLE", "SHOW DATABASES", "SHOW TABLES",
    "TIMESTAMP AS OF", "TRUNCATE TABLE", "UNION ALL", "USE", "VALUES", "VERSION AS OF", "WHERE",
    "WITH",
)  # fmt: skip
_WORD = re.compile(r"[\w.$]+")


class Names(Completer):
    """Completes keywords, the tables of a lake, and the columns of tables that the text names.

    After `o.`, it completes the columns of the table with the alias `o`, which is defined before or
    after the cursor.
    """

    def __init__(self, lake: Lake, before: str = "") -> None:
        self._lake = lake
        self._before = before

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        """Completions of the word before the cursor. None if the text cannot be parsed."""
        word = document.get_word_before_cursor(pattern=_WORD)
        if not word:
            return
        try:
            names = [*self._names(f"{self._before}\n{document.text}", word)]
        except KeytideError:
            return
        for name in dict.fromkeys(names):
            if name.lower().startswith(word.lower()):
                yield Completion(name, start_position=-len(word))

    def _names(self, text: str, word: str) -> Iterator[str]:
        known, database = self._lake.catalog.tables(), self._lake.database
        owner, dot, _ = word.rpartition(".")
        for table, called in _mentioned(text, known, database):
            columns = self._lake.table(table).schema.names
            if not dot:
                yield from columns
            elif owner.lower() in called:
                yield from (f"{owner}.{column}" for column in columns)
        yield from (_short(table, database) for table in known)
        yield from KEYWORDS


def _mentioned(text: str, known: list[str], database: str) -> Iterator[tuple[str, set[str]]]:
    """The tables that a text names, each with all of its names there, in lower case."""
    for table in known:
        spellings = {table.lower(), _short(table, database).lower()}
        spelt = "|".join(map(re.escape, spellings))
        mention = rf"(?<![\w.$])(?:{spelt})(?![\w.$])(?:(?:\s+as)?\s+(\w+))?"
        aliases = re.findall(mention, text, re.IGNORECASE)
        if aliases:
            last = table.rpartition(".")[2]
            yield table, {*spellings, last.lower(), *(alias.lower() for alias in aliases)}


def _short(table: str, database: str) -> str:
    return table.removeprefix(f"{database}.")
