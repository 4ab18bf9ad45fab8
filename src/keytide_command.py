"""The entry point of the `keytide` command. It starts `keytide.cli.main`.

Importing the libraries of a command takes most of its time, if it has little to do. If Ctrl-C
interrupts an import, the process ends immediately with the exit code of an interrupted command and
without a traceback. This file is outside of the package, because importing the package takes time,
too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["importing", "main"]

_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line and exit."""
    _open_closed_streams()
    with importing():
        from keytide.cli.main import main as run
    run()


@contextmanager
def importing() -> Iterator[None]:
    """In the meantime, Ctrl-C ends the process."""
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler  # whoever set another one means it
    if is_default:
        signal.signal(signal.SIGINT, _leave)
    yield
    if is_default:
        signal.signal(signal.SIGINT, before)


def _open_closed_streams() -> None:
    """Open what a shell closed with `<&-`, `>&-` or `2>&-`. Nothing is read or shown there.

    Otherwise the next file that is opened, such as one of a table, would get the number of the
    stream, and the text meant for the stream.
    """
    names = ("stdin", "stdout", "stderr")
    while (number := os.open(os.devnull, os.O_RDWR)) < len(names):
        mode = "r" if number == 0 else "w"
        setattr(sys, names[number], open(number, mode, encoding="utf-8"))  # noqa: SIM115
    os.close(number)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
