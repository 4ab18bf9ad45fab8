"""The entry point of the `keytide` command. It starts `keytide.cli.main`.

Importing the libraries takes a second, which is most of the time of a small command. If Ctrl-C
interrupts the import, the process ends immediately with the exit code of an interrupted command and
without a traceback. This file is outside of the package, because importing the package's commands
imports the libraries.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["main"]

_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line and exit."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # whoever set another one means it
        signal.signal(signal.SIGINT, _leave)
    from keytide.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
