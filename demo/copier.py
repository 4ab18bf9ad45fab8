"""A copy of a table, made only from the table's changelog by a process that is killed.

    python demo/copier.py WAREHOUSE TABLE CHECKPOINT [--once]

The process is a Spark stream from the table into its copy. With `--once`, it ends after the
existing changes. Otherwise it runs forever. The checkpoint stores its progress, and each of its
batches is committed once, whatever happens to the process. So it can be killed at any moment.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property  # noqa: TID251  # users have this one
from pathlib import Path
from threading import Thread

from patience import StuckError, ended, kill, turns

import keytide as kt

COPY = "_copy"
ONCE = "--once"


@dataclass
class Copier:
    """Starts a process that copies a table, and kills it.

    The process is independent, so it copies while other work continues.
    """

    lake: kt.Lake
    warehouse: Path
    table: str
    checkpoint: Path
    commits_before_kill: int = 2
    killed_after: int = 0

    def start(self) -> None:
        """Start to copy. The process is killed after it has committed some of the changes."""
        source = self.lake.table(self.table)
        self.lake.create_table(
            self.table + COPY, source.schema, source.primary_key, exists_ok=True,
            options={"bucket": "2"},
        )  # fmt: skip
        self._killing.start()

    def finish(self) -> bool:
        """Copy the rest in another process, and return whether the copy is equal to the table."""
        self._killing.join()
        table, copy = (self.lake.table(name) for name in (self.table, self.table + COPY))
        process = self._process(ONCE)
        try:
            code = ended(process, lambda: len(copy.snapshots()))
        except StuckError as error:
            print(f"{error}, see {self._log}")
            return False
        finally:
            kill(process)
        if code:
            print(f"the copying process ended with {code}, see {self._log}")
            return False
        key = list(table.primary_key)
        rows, copied = (each.scan().to_polars().sort(key) for each in (table, copy))
        changes = table.changes(0, mode="changelog").count()
        commits = len(copy.snapshots())
        equal = rows.equals(copied)
        print(f"{changes:,} changes in {commits} commits, killed after {self.killed_after} of them")
        print(f"{copied.height:,} rows, {'equal' if equal else 'DIFFERENT'}")
        return equal

    @cached_property
    def _killing(self) -> Thread:
        return Thread(target=self._start_and_kill, daemon=True)

    def _start_and_kill(self) -> None:
        process, copy = self._process(), self.lake.table(self.table + COPY)
        try:
            for _ in turns(process, lambda: len(copy.snapshots())):
                self.killed_after = len(copy.snapshots())
                if self.killed_after >= self.commits_before_kill:
                    break
        except StuckError as error:
            print(f"{error}, see {self._log}")
        finally:
            kill(process)

    def _process(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process that copies. It leads a process group that includes its Java process."""
        places = [str(self.warehouse), self.table, str(self.checkpoint)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, __file__, *places, *arguments],
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    @property
    def _log(self) -> Path:
        """The log file of the processes."""
        return self.checkpoint.parent / "copier.log"


def copy(warehouse: str, table: str, checkpoint: str, *, once: bool) -> None:
    """Apply the changelog of a table to its copy."""
    lake = kt.connect(warehouse)
    spark = kt.spark.session(**{"spark.master": "local[1]"})
    changes = (
        spark.readStream.format("keytide")
        .option("mode", "changelog")
        .option("start", "0")
        .option("max-rows-per-trigger", "20000")
        .load(lake.table(table).uri)
    )
    writer = changes.writeStream.format("keytide").option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    writer.start(lake.table(table + COPY).uri).awaitTermination()


if __name__ == "__main__":
    copy(*sys.argv[1:4], once=ONCE in sys.argv)
