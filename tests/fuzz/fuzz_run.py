"""Fuzzing for a given time: `make fuzz MINUTES=60 SEED=1`, or one case again by `REPLAY=sql:17`.

Cases run in a worker process, which is begun anew every little while, so memory stays bounded; a
case that hangs or takes the process down is a finding like any other. Exit code 1 with findings.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "behind"))

import behind_writers
import fuzz_calls  # behind the path of what the tests share
import fuzz_changes
import fuzz_feeds
import fuzz_files
import fuzz_lives
import fuzz_others
import fuzz_published
import fuzz_sources
import fuzz_sql
import fuzz_tables
from fuzz_case import Case, Finding, made

__all__ = ["PARTS", "run_case"]

PARTS: dict[str, Callable[[Case], None]] = {
    "tables": fuzz_tables.run,
    "calls": fuzz_calls.run,
    "changes": fuzz_changes.run,
    "sql": fuzz_sql.run,
    "queries": fuzz_sql.run_queries,
    "feeds": fuzz_feeds.run,
    "sources": fuzz_sources.run,
    "files": fuzz_files.run,
    "lives": fuzz_lives.run,
    "others": fuzz_others.run,
    "published": fuzz_published.run,
}

_HANG_SECONDS = 240
"""How long a case may be silent; the longest take a few seconds on a machine that is busy."""
_TURN_SECONDS = 60


def run_case(part: str, seed: int, number: int, *, is_far: bool = False) -> Case:
    """Run one case."""
    with made(part, seed, number, is_far=is_far) as case:
        try:
            PARTS[part](case)
        except Exception:  # the oracle's, or of a call that it takes for granted
            case.note("crash", "the case itself", traceback.format_exc()[-1_400:])
        behind_writers.wait()
    return case


# -- the worker ------------------------------------------------------------------------------------


def work(part: str, seed: int, first: int, seconds: float, is_far: bool) -> None:
    """Run cases for a time, and tell of each on the standard output."""
    faulthandler.enable()
    end = time.monotonic() + seconds
    number = first
    while time.monotonic() < end:
        _tell({"began": number})
        case = run_case(part, seed, number, is_far=is_far)
        findings = [asdict(each) for each in case.findings]
        _tell({"ended": number, "findings": findings, "counts": case.counts})
        number += 1


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), file=sys.__stdout__, flush=True)


# -- the run ---------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run: what it has done and found."""

    seed: int
    parts: list[str]
    scratch: str
    is_far: bool
    cases: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    found: dict[tuple[str, str], list[Finding]] = field(default_factory=dict)

    def go_on(self, seconds: float) -> None:
        """Let the parts take turns for a time."""
        end = time.monotonic() + seconds
        turn = max(2.0, min(_TURN_SECONDS, seconds / len(self.parts) / 2))
        while time.monotonic() < end:
            for part in self.parts:
                if (left := end - time.monotonic()) > 0:
                    self._turn(part, min(turn, left))

    def _turn(self, part: str, seconds: float) -> None:
        with tempfile.TemporaryFile(dir=self.scratch) as errors:
            self._work(part, seconds, errors)

    def _work(self, part: str, seconds: float, errors: IO[bytes]) -> None:
        begun = first = self.cases[part]
        worker = subprocess.Popen(
            [sys.executable, __file__, "--seed", str(self.seed),
             *(["--far"] if self.is_far else []), "--work", part, str(first), str(seconds)],
            stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": self.scratch},
        )  # fmt: skip
        hangs = False
        for message in _messages(worker):
            if message is None:
                hangs = True
                worker.send_signal(signal.SIGABRT)  # its last words are where each thread is
                worker.wait()
                self._keep(Finding("hang", part, begun, "hang", _last_words(errors)))
            elif "began" in message:
                begun = message["began"]
                self.cases[part] = begun + 1
            else:
                self.counts.setdefault(part, Counter()).update(message["counts"])
                for each in message["findings"]:
                    self._keep(Finding(**each))
        if worker.wait() and not hangs:
            place = f"exit code {worker.returncode}"
            self._keep(Finding("crash", part, begun, place, _last_words(errors)))

    def _keep(self, finding: Finding) -> None:
        same = self.found.setdefault((finding.kind, f"{finding.part} {finding.place}"), [])
        same.append(finding)
        if len(same) == 1:
            far = " FAR=1" if self.is_far else ""
            replay = f"make fuzz SEED={self.seed}{far} REPLAY={finding.part}:{finding.case}"
            print(f"{finding.kind}: {finding.place}\n  {finding.told}\n  {replay}", flush=True)

    def summary(self) -> str:
        """What was done and found, part by part."""
        lines = [f"seed {self.seed}{', far lakes with a cache' if self.is_far else ''}"]
        for part in self.parts:
            counted = ", ".join(f"{n:,} {k}" for k, n in sorted(self.counts.get(part, {}).items()))
            lines.append(f"{part:<8} {self.cases[part]:>8,} cases: {counted}")
        kinds = Counter(kind for kind, _ in self.found)
        told = {"error": "places with errors that are not Keytide's", "rows": "places where rows "
                "differ", "hang": "hangs", "crash": "crashes"}  # fmt: skip
        lines += [f"{kinds[kind]} {what}" for kind, what in told.items()]
        lines += [behind_writers.report()] if behind_writers.IS_SET else []
        return "\n".join(lines)


def _messages(worker: subprocess.Popen[str]) -> Iterator[dict[str, Any] | None]:
    """What the worker tells, and None when it is silent for too long."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=_HANG_SECONDS)
        except queue.Empty:
            yield None
            return
        if not line:
            return
        yield json.loads(line)


def _last_words(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read()[-4_000:].decode(errors="replace")


def replay(part: str, seed: int, number: int, is_far: bool) -> int:
    """Run one case again, here, and print what it finds."""
    faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
    case = run_case(part, seed, number, is_far=is_far)
    for each in case.findings:
        print(f"{each.kind}: {each.place}\n  {each.told}")
    print(f"{part} {number} with seed {seed}: {len(case.findings)} findings, {case.counts}")
    return 1 if case.findings else 0


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--replay", metavar="PART:NUMBER")
    parser.add_argument("--far", action="store_true", help="lakes in an object store, with a cache")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    behind_writers.begin()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    if given.work:
        part, first, seconds = given.work
        work(part, seed, int(first), float(seconds), given.far)
        return 0
    if given.replay:
        part, number = given.replay.split(":")
        return replay(part, seed, int(number), given.far)
    print(f"seed {seed}", flush=True)
    scratch = tempfile.mkdtemp(prefix="keytide-fuzz-")
    run = Run(seed, given.parts, scratch, given.far)
    try:
        run.go_on(given.minutes * 60)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        print(run.summary(), flush=True)
    return 1 if run.found else 0


if __name__ == "__main__":
    sys.exit(main())
