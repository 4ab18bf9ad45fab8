"""Waiting for a process for as long as it gets on, however slow the machine is.

No clock says how long work may take on a machine that has other work. What can be told is whether a
process does anything: what it makes grows, or it and its children use the processor. A process that
does neither for long is stuck, and one that died is noticed at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

QUIET_SECONDS = 120.0
# Less than a process gets beside a hundred others, and more than a virtual machine of Java needs
# to do nothing.
CPU_SECONDS = 2.0
PAUSE_SECONDS = 0.05
_LOOKS_SECONDS = 1.0


class StuckError(Exception):
    """A process lives and does nothing."""


def turns(
    process: subprocess.Popen[Any],
    made: Callable[[], object] = lambda: None,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    cpu_seconds: float = CPU_SECONDS,
) -> Iterator[None]:
    """A turn again and again, until the process has ended.

    `made` tells what it has made so far. REQUIRES: the process leads a group of its own. Raises
    `StuckError` where for `quiet_seconds` that was the same, and the group used less than
    `cpu_seconds` of the processor.
    """
    seen, moved_at, used_then = made(), time.monotonic(), cpu_of(process.pid)
    looked_at = moved_at
    while process.poll() is None:
        yield
        time.sleep(PAUSE_SECONDS)
        now = time.monotonic()
        if now - looked_at < min(_LOOKS_SECONDS, quiet_seconds / 4):
            continue
        looked_at, makes, used = now, made(), cpu_of(process.pid)
        # Time of a child that ended is lost, which is a move as well.
        if makes != seen or abs(used - used_then) >= cpu_seconds:
            seen, moved_at, used_then = makes, now, used
        elif now - moved_at > quiet_seconds:
            raise StuckError(f"process {process.pid} did nothing for {now - moved_at:.0f} s")


def ended(process: subprocess.Popen[Any], made: Callable[[], object] = lambda: None) -> int:
    """The exit code of a process, when it has ended. Raises as `turns`."""
    for _ in turns(process, made):
        pass
    return process.wait()


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process and its children at once, if they live."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cpu_of(group: int) -> float:
    """The seconds of the processor that the processes of a group have used; 0 where unknown."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold anything; behind it come state, parent and group.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
