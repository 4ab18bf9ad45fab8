"""The prompt of `keytide sql`: history, completion, and statements over several lines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from keytide.cli.completion import Names
from keytide.cli.output import Format, note
from keytide.cli.shortcuts import LEAVE, carry_out, is_shortcut
from keytide.errors import KeytideError
from keytide.lake.lake import Lake

__all__ = ["talk"]


def talk(
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
        if not typed and line.strip().rstrip("; ").lower() in LEAVE:
            return
        typed = f"{typed}\n{line}" if typed else line.strip()
        if is_shortcut(typed) or typed.rstrip().endswith(";"):
            format = _answered(lake, run, typed, format)
            typed = ""


def _answered(lake: Lake, run: Callable[[str, Format], None], typed: str, format: Format) -> Format:
    """Run the typed text. Returns the output format to use from then on."""
    try:
        if is_shortcut(typed):
            return carry_out(typed, lake, format)
        run(typed, format)
    except KeytideError as error:
        note(f"error: {error}")
    except KeyboardInterrupt:
        note("stopped")
    return format


def _history() -> History:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    try:
        (state / "keytide").mkdir(mode=0o700, parents=True, exist_ok=True)
        (state / "keytide" / "sql-history").touch(mode=0o600)
        (state / "keytide" / "sql-history").chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(state / "keytide" / "sql-history"))
