"""Writers in processes of their own, which are killed while they compact behind themselves.

    python killed_writers.py TABLE KIND WRITER FIRST

The rows of a commit follow from the number of its writer and its own, so the commits that a table
tells of say what it has to show, whatever a writer that died had time to tell.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

import keytide as kt
from keytide.format.snapshot import CommitKind, Snapshot

__all__ = ["KINDS", "Killed", "new_table", "rows_of"]

KINDS: dict[str, dict[str, str]] = {
    "last": {"bucket": "2"},
    "latest": {"bucket": "1", "sequence.field": "v"},
    "sums": {
        "bucket": "2", "merge-engine": "aggregation", "fields.v.aggregate-function": "sum",
        "fields.s.aggregate-function": "last_value",
    },
    "placed": {"bucket": "-1", "dynamic-bucket.target-row-num": "5"},
    "told": {"bucket": "1", "changelog-producer": "input"},
}  # fmt: skip
_BEHIND = {
    "num-sorted-run.compaction-trigger": "2",
    "compaction.background.min-size": "0 b",
    "compaction.background.min-runs": "2",
    "snapshot.time-retained": "1 d",
    # Two who write without a pause may starve each other for long on a busy machine.
    "commit.max-retries": "10000",
}
_SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64()), ("s", pa.string())])
_KEYS = 8

Rows = dict[int, tuple[int, str]]


def new_table(warehouse: str, kind: str) -> kt.Table:
    """An empty table of which all is compacted behind its writers."""
    options = {**KINDS[kind], **_BEHIND}
    return kt.connect(warehouse).create_table("t", _SCHEMA, ["k"], options=options)


def rows_of(scan: kt.Scan) -> Rows:
    """What a scan shows, by key."""
    found = scan.to_pylist()
    shown = {row["k"]: (row["v"], row["s"]) for row in found}
    assert len(shown) == len(found), "a key is shown twice"
    return shown


def _rows(kind: str, writer: int, number: int) -> list[dict[str, Any]]:
    """The rows of a commit. Nobody else has the keys of a writer."""
    chance = random.Random(f"{writer} {number}")
    filler = chance.randbytes(200).hex()
    kinds = ["+I"] if kind == "sums" else ["+I", "+I", "+U", "-D"]
    return [
        {"k": 10 * key + writer, "v": number, "s": f"{writer}/{number} {filler}",
         "_row_kind": chance.choice(kinds)}
        for key in chance.sample(range(_KEYS), chance.randint(1, _KEYS))
    ]  # fmt: skip


def _learn(kind: str, rows: Rows, given: list[dict[str, Any]]) -> None:
    for row in given:
        key, value = row["k"], row["v"]
        if row["_row_kind"] == "-D":
            rows.pop(key, None)
        else:
            before = rows[key][0] if kind == "sums" and key in rows else 0
            rows[key] = (before + value, row["s"])


# -- the writers -----------------------------------------------------------------------------------


@dataclass
class Killed:
    """A table, the processes that write to it, and what they told before they were killed."""

    table: kt.Table
    kind: str
    chance: random.Random
    told: list[tuple[str, int, int]] = field(default_factory=list)
    """Writer, commit and snapshot of each that was acknowledged."""
    deaths: int = 0
    """How many of them came in the middle of a compaction."""

    def kill(self, writers: int, times: int) -> None:
        """Let some writers write at once, of which one or another is killed while it compacts.

        In the end all are. What the table shows is checked after each death, whatever others do.
        """
        running = {writer: self._begun(writer) for writer in range(writers)}
        for process in running.values():
            _go(process)
        for _ in range(times):
            victim = self.chance.randrange(writers)
            self._kill(victim, running.pop(victim))
            self.check()
            running[victim] = self._begun(victim)
            _go(running[victim])
        for writer, process in running.items():
            self._kill(writer, process)
        self.check()

    def _begun(self, writer: int) -> subprocess.Popen[str]:
        done = [number for name, number, _ in self.commits() if name == f"writer-{writer}"]
        command = [sys.executable, __file__, self.table.uri, self.kind, writer, len(done)]
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": path, "POLARS_MAX_THREADS": "1"}
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def _kill(self, writer: int, process: subprocess.Popen[str]) -> None:
        """Kill a writer some time after it has begun to compact, and keep what it told."""
        assert process.stdout is not None
        lines = []
        for _ in range(self.chance.randint(1, 4)):
            while (line := process.stdout.readline()) != "compacts\n":
                assert line, "the writer ended by itself"
                lines.append(line)
            lines.append(line)
        time.sleep(self.chance.choice([0, self.chance.uniform(0, 0.05)]))
        process.kill()
        lines += process.stdout.readlines()
        process.communicate()  # alone it would not give what has been read ahead
        self.deaths += lines.count("compacts\n") > lines.count("compacted\n")
        commits = [line.split() for line in lines if line[0].isdigit() and line.endswith("\n")]
        self.told += [(f"writer-{writer}", int(number), int(at)) for number, at in commits]

    # -- what holds ----------------------------------------------------------------------------

    def commits(self, until: Snapshot | None = None) -> list[tuple[str, int, int]]:
        """Writer, number and snapshot of the commits that wrote rows."""
        return [
            (each.commit_user, each.commit_identifier, each.id)
            for each in self.table.snapshots()
            if each.commit_kind is CommitKind.APPEND and (until is None or each.id <= until.id)
        ]

    def expected(self, until: Snapshot | None = None) -> Rows:
        """What the table has to show, as of a snapshot or now."""
        rows: Rows = {}
        for name, number, _ in self.commits(until):
            _learn(self.kind, rows, _rows(self.kind, int(name.rsplit("-", 1)[1]), number))
        return rows

    def check(self) -> None:
        """All that was acknowledged is there, each commit once, and what they make is shown."""
        made = self.commits()
        for writer in {name for name, _, _ in made}:
            numbers = [number for name, number, _ in made if name == writer]
            assert numbers == list(range(len(numbers)))
        assert set(self.told) <= set(made)
        scan = kt.open_table(self.table.uri).scan()
        assert rows_of(scan) == self.expected(scan.snapshot)


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


# -- one of them -----------------------------------------------------------------------------------


def _write(uri: str, kind: str, writer: int, first: int) -> None:
    """Write until killed, and tell of each commit and each compaction behind them."""
    from keytide.maintenance import background

    background.compact_due = _telling(background.compact_due)
    table = kt.open_table(uri)
    sys.stdin.readline()
    for number in count(first):
        rows = _rows(kind, writer, number)
        done = table.write(rows, commit_user=f"writer-{writer}", commit_identifier=number)
        _tell(f"{number} {done.snapshot_id}")
        time.sleep(0.005)


def _telling(compact: Callable[..., Any]) -> Callable[..., Any]:
    def compact_and_tell(*given: Any) -> Any:
        _tell("compacts")
        try:
            return compact(*given)
        finally:
            _tell("compacted")

    return compact_and_tell


def _tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # whole lines, of several threads


if __name__ == "__main__":
    _write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
