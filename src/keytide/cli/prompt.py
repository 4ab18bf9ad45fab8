"""The prompt of `keytide sql`: history, completion, and statements over several lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from keytide.cli.output import note
from keytide.errors import KeytideError
from keytide.table.lake import Lake

__all__ = ["Names", "talk"]

KEYWORDS = (
    "ALTER TABLE", "CALL", "CREATE TABLE", "DESCRIBE", "DISTINCT", "DROP TABLE", "EXPLAIN", "FROM",
    "GROUP BY", "HAVING", "INSERT INTO", "INSERT OVERWRITE", "JOIN", "LEFT JOIN", "LIMIT",
    "NOT ENFORCED", "ORDER BY", "PARTITIONED BY", "PRIMARY KEY", "SELECT", "SHOW CREATE TABLE",
    "SHOW TABLES", "TIMESTAMP AS OF", "TRUNCATE TABLE", "UNION ALL", "VALUES", "VERSION AS OF",
    "WHERE", "WITH",
)  # fmt: skip
_LEAVE = ("exit", "quit", "exit;", "quit;")


def talk(lake: Lake, run: Callable[[str], None], session: PromptSession[str] | None = None) -> None:
    """Read statements and run each as soon as it ends with a semicolon, until Ctrl-D or `exit`.

    Ctrl-C drops what has been typed. Errors are shown, and the talk goes on.
    """
    asked = PromptSession(history=_history()) if session is None else session
    note(f"{lake.uri}: end statements with a semicolon; Ctrl-D or exit leaves")
    typed = ""
    while True:
        try:
            line = asked.prompt(
                "    ...> " if typed else "keytide> ",
                completer=Names(lake, typed),
                lexer=PygmentsLexer(SqlLexer),
                complete_while_typing=False,
            )
        except KeyboardInterrupt:
            typed = ""
            continue
        except EOFError:
            return
        if not typed and line.strip().lower() in _LEAVE:
            return
        typed = f"{typed}\n{line}" if typed else line
        if not typed.strip():
            typed = ""
        elif typed.rstrip().endswith(";"):
            _run(run, typed)
            typed = ""


def _run(run: Callable[[str], None], text: str) -> None:
    try:
        run(text)
    except KeytideError as error:
        note(f"error: {error}")
    except KeyboardInterrupt:
        note("stopped")


class Names(Completer):
    """Completes keywords, the tables of a lake, and the columns of tables that were typed."""

    def __init__(self, lake: Lake, before: str = "") -> None:
        self._lake = lake
        self._before = before

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        """What may stand in place of the word before the cursor."""
        word = document.get_word_before_cursor(pattern=re.compile(r"[\w.$]+"))
        if not word:
            return
        for name in self._names(f"{self._before} {document.text}"):
            if name.lower().startswith(word.lower()):
                yield Completion(name, start_position=-len(word))

    def _names(self, typed: str) -> Iterator[str]:
        words = set(re.findall(r"[\w.$]+", typed))
        tables = self._lake.tables()
        for name in tables:
            short = name.removeprefix("default.")
            yield short
            if words & {name, short}:
                yield from self._lake.table(name).schema.names
        yield from KEYWORDS


def _history() -> History:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    try:
        (state / "keytide").mkdir(parents=True, exist_ok=True)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(state / "keytide" / "sql-history"))
