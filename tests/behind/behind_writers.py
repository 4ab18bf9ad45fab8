"""`KEYTIDE_COMPACTION=behind`: all compactions that may run behind a writer do, however small.

It holds in this process and in all Pythons that it begins, as long as they are given `PYTHONPATH`.
Tables that say themselves what runs behind their writers keep to it.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["IS_SET", "OFTEN", "begin", "python_path", "report", "wait"]

_HERE = str(Path(__file__).parent)
_SETTING, _COUNTS = "KEYTIDE_COMPACTION", "KEYTIDE_COMPACTIONS_BEHIND"
_BEGUN, _COMMITTED, _FAILED = "bcf"

_begun: list[bool] = []

IS_SET = os.environ.get(_SETTING, "") == "behind"
"""Whether it is asked for."""
OFTEN = {"num-sorted-run.compaction-trigger": "2"} if IS_SET else {}
"""Options of a table that lives briefly, so that something is compacted behind its writers."""


def begin() -> None:
    """Compact behind the writers of this process and its children, where it is asked for."""
    if os.environ.get(_SETTING, "behind") != "behind":
        raise SystemExit(f"{_SETTING}={os.environ[_SETTING]}: its one value is behind")
    if not IS_SET or _begun:
        return
    _begun.append(True)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = python_path(*(path for path in known if path not in ("", _HERE)))
    if _COUNTS not in os.environ:
        handle, os.environ[_COUNTS] = tempfile.mkstemp(prefix="keytide-behind-")
        os.close(handle)
        atexit.register(os.unlink, os.environ[_COUNTS])
    _compact_all_behind()
    _count()


def python_path(*folders: str) -> str:
    """`PYTHONPATH` of a child that is to find modules in these folders."""
    # Where a test has a `sitecustomize` of its own, that comes first and calls `begin` itself.
    return os.pathsep.join([*folders, *([_HERE] if IS_SET else [])])


def _compact_all_behind() -> None:
    from keytide.compaction.compact import Planner
    from keytide.maintenance import writes

    are_large, are_many = writes._runs_in_background, Planner.are_worth_a_beginning

    def goes_behind(table: Any, planner: Planner, bytes_due: int) -> bool:
        is_said = "compaction.background.min-size" in planner.view.options.raw
        return are_large(table, planner, bytes_due if is_said else sys.maxsize)

    def are_worth_a_beginning(self: Planner, live: Any, buckets: Any) -> bool:
        is_said = "compaction.background.min-runs" in self.view.options.raw
        return are_many(self, live, buckets) if is_said else True

    writes._runs_in_background = goes_behind
    Planner.are_worth_a_beginning = are_worth_a_beginning  # type: ignore[method-assign]


# -- how many there were ---------------------------------------------------------------------------


def _count() -> None:
    from keytide.maintenance.background import CompactionRequest

    compact, follow = CompactionRequest.compact, CompactionRequest._follow

    def counted(self: CompactionRequest) -> None:
        _add(_BEGUN)
        try:
            compact(self)
        except Exception as error:
            _add(f"{_FAILED} {_place(error)}")
            raise

    def followed(self: CompactionRequest, snapshot_id: int) -> None:
        _add(_COMMITTED)
        follow(self, snapshot_id)

    CompactionRequest.compact = counted  # type: ignore[method-assign]
    CompactionRequest._follow = followed  # type: ignore[method-assign]


def _add(event: str) -> None:
    """Note an event where all processes do, so that those which are killed count too."""
    file = os.open(os.environ[_COUNTS], os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{event}\n".encode())
    os.close(file)


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__} at {places}: {' '.join(str(error).split())[:200]}"


def report() -> str:
    """What ran behind writers in all processes so far, and where it failed."""
    events = Path(os.environ[_COUNTS]).read_text().splitlines()
    kinds = Counter(event[0] for event in events)
    lines = [
        f"compactions behind writers: {kinds[_BEGUN]:,} begun, {kinds[_COMMITTED]:,} commits, "
        f"{kinds[_FAILED]:,} failed"
    ]
    return "\n".join(lines + sorted({event for event in events if event[0] == _FAILED}))


def wait() -> None:
    """Wait for what is compacted behind the writers of this process."""
    from keytide.maintenance.background import BACKGROUND

    BACKGROUND.wait_for_all()
