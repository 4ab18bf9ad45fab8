"""Waits for a process as long as it makes progress, however slow the machine is.

A fixed timeout does not work on a machine that has other work. But it is possible to observe
whether a process makes progress: its output grows, or it and its children use the processor. A
process that does neither for a long time is stuck. A process that died is noticed immediately.
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
# Less than a process gets next to a hundred others, and more than an idle Java virtual machine
# uses.
CPU_SECONDS = 2.0
PAUSE_SECONDS = 0.05
_LOOKS_SECONDS = 1.0


class StuckError(Exception):
    """A process is alive but makes no progress."""


def turns(
    process: subprocess.Popen[Any],
    made: Callable[[], object] = lambda: None,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    cpu_seconds: float = CPU_SECONDS,
) -> Iterator[None]:
    """Yield repeatedly until the process has ended.

    `made` returns the output of the process until now. REQUIRES: the process leads its own process
    group. Raises `StuckError` if the output did not change for `quiet_seconds` and the group used
    less than `cpu_seconds` of processor time.
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
        # The time of a child that ended is lost. That counts as progress too.
        if makes != seen or abs(used - used_then) >= cpu_seconds:
            seen, moved_at, used_then = makes, now, used
        elif now - moved_at > quiet_seconds:
            raise StuckError(f"process {process.pid} did nothing for {now - moved_at:.0f} s")


def ended(process: subprocess.Popen[Any], made: Callable[[], object] = lambda: None) -> int:
    """Wait until a process has ended, and return its exit code. Raises as `turns`."""
    for _ in turns(process, made):
        pass
    return process.wait()


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its children immediately, if they are alive."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cpu_of(group: int) -> float:
    """The processor time in seconds that a process group has used; 0 if unknown."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, can contain anything. State, parent and group follow.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
