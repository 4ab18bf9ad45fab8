"""The prompt of `keytide sql`: history, completion, and statements over several lines.

Completion offers keywords, tables, and their columns. Commands of the prompt that are not SQL are a
backslash and a letter.
"""

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

from keytide.cli.inspection import describe_table, list_tables
from keytide.cli.output import Format, note
from keytide.dml.attachments import table_of
from keytide.errors import InvalidError, KeytideError
from keytide.lake.lake import Lake
from keytide.lake.table import Table

# -- completion of keywords, tables, and their columns ---------------------------------------------


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
        for table in known:
            spellings = {table.lower(), table.removeprefix(f"{database}.").lower()}
            spelt = "|".join(map(re.escape, spellings))
            mention = rf"(?<![\w.$])(?:{spelt})(?![\w.$])(?:(?:\s+as)?\s+(\w+))?"
            aliases = re.findall(mention, text, re.IGNORECASE)
            if not aliases:
                continue
            last = table.rpartition(".")[2]
            called = {*spellings, last.lower(), *(alias.lower() for alias in aliases)}
            columns = self._lake.table(table).schema.names
            if not dot:
                yield from columns
            elif owner.lower() in called:
                yield from (f"{owner}.{column}" for column in columns)
        yield from (table.removeprefix(f"{database}.") for table in known)
        yield from KEYWORDS


# -- shortcuts: a backslash and a letter -----------------------------------------------------------


EXIT_COMMANDS = ("\\q", "exit", "quit")
"""The command that ends the prompt."""

_HELP = ("\\?", "help", "?")
_ALL = {
    "\\d": "list the tables of the lake",
    "\\d TABLE": "show a table's columns, keys and options",
    "\\x": "switch between one line per row (table) and one line per value (vertical)",
    "\\?, help": "this list",
    "\\q, exit, Ctrl-D": "leave",
}
_USAGE = "\n".join(f"  {usage:<16}  {does}" for usage, does in _ALL.items())
_GUIDE = (
    "End statements with a semicolon; they can span several lines. Ctrl-C discards the "
    f"statement.\n{_USAGE}"
)


def is_shortcut(line: str) -> bool:
    """Whether a line is a command of this module, and not SQL."""
    return line.startswith("\\") or line.rstrip("; ").lower() in _HELP


def run_shortcut(line: str, lake: Lake, format: Format) -> Format:
    """Run a command. Returns the output format to use from then on.

    Raises `InvalidError`, which lists the commands, for an unknown command, and the errors of
    opening a table.
    """
    match line.rstrip("; ").split():
        case ["\\d"]:
            if not list_tables(lake, None, format):
                note(f"no tables in {lake.uri}")
        case ["\\d", name]:
            describe_table(Table.of(table_of(lake.catalog, name)), format)
        case ["\\x"]:
            format = Format.TABLE if format is Format.VERTICAL else Format.VERTICAL
            note(f"output format: {format.value}")
        case [word] if word.lower() in _HELP:
            note(_GUIDE)
        case _:
            raise InvalidError(f"unknown command {line}; the prompt has {', '.join(_ALL)}")
    return format


# -- the prompt ------------------------------------------------------------------------------------


def run_prompt(
    lake: Lake,
    run: Callable[[str, Format], None],
    format: Format = Format.TABLE,
    session: PromptSession[str] | None = None,
) -> None:
    r"""Read statements and run each as soon as it ends with a semicolon, until Ctrl-D or `\q`.

    At the start of a statement, a line with a backslash is a command of the prompt. Ctrl-C discards
    the typed text. Errors are shown, and the prompt continues.
    """
    asked = PromptSession(history=_history()) if session is None else session
    note(f"{lake.uri}: end statements with a semicolon; \\? for help, \\q or Ctrl-D to quit")
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
        if not typed and line.strip().rstrip("; ").lower() in EXIT_COMMANDS:
            return
        typed = f"{typed}\n{line}" if typed else line.strip()
        if not is_shortcut(typed) and not typed.rstrip().endswith(";"):
            continue
        try:
            if is_shortcut(typed):
                format = run_shortcut(typed, lake, format)
            else:
                run(typed, format)
        except KeytideError as error:
            note(f"error: {error}")
        except KeyboardInterrupt:
            note("stopped")
        typed = ""


def _history() -> History:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    try:
        (state / "keytide").mkdir(mode=0o700, parents=True, exist_ok=True)
        (state / "keytide" / "sql-history").touch(mode=0o600)
        (state / "keytide" / "sql-history").chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(state / "keytide" / "sql-history"))
