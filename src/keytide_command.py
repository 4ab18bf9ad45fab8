"""The way from a shell into `keytide.cli.main`, quiet from the first moment.

Loading the libraries takes a second, most of what a small command does. Nothing has begun by then,
so Ctrl-C ends the process at once, with the exit code of every stopped command, and without a
traceback from inside of whatever was being loaded. This file stands beside the package, because
importing the commands loads them.
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
