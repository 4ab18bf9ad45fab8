"""A life of a table on a cluster: random statements of one driver, and what a dict says of each.

`python cluster_life.py FOLDER SEED STEPS` is the driver. It may be killed at any moment and started
again: it goes on after the last statement that its journal knows.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

__all__ = ["KINDS", "Step", "steps_of"]

Rows: TypeAlias = "dict[int, tuple[int, str]]"

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
KINDS: dict[str, dict[str, str]] = {
    "buckets": {"bucket": "3"},
    "deletion vectors": {"bucket": "2", "deletion-vectors.enabled": "true"},
    "index of keys": {"bucket": "2", "upsert.mode": "full"},
    "dynamic buckets": {"bucket": "-1", "dynamic-bucket.target-row-num": "150"},
    "small buffers": {"bucket": "2", "write-buffer-size": "16 kb", "write.distribution": "hash"},
}
KEYS = 400


@dataclass(frozen=True)
class Step:
    """One statement: its name, what it does to the table, and to the dict."""

    name: str
    act: Callable[[Any, Any], object]
    model: Callable[[Rows], Rows]


def steps_of(seed: int, count: int) -> list[Step]:
    """The statements of a life."""
    chance = random.Random(seed)
    makers = (_upsert, _upsert, _append, _merge, _delete, _update, _compact, _overwrite)
    return [chance.choice(makers)(chance, number) for number in range(count)]


def _frame(spark: Any, start: int, end: int, number: int) -> Any:
    parts = 1 + (end - start) % 5
    return spark.range(start, end, 1, parts).selectExpr(
        f"id % {KEYS} AS id", "id AS v", f"concat('step {number} of ', id) AS s"
    )


def _rows(start: int, end: int, number: int) -> Rows:
    return {n % KEYS: (n, f"step {number} of {n}") for n in range(start, end)}


def _range(chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(3 * KEYS)
    return start, start + chance.choice((5, 100, 1_000, 5_000))


def _upsert(chance: random.Random, number: int) -> Step:
    start, end = _range(chance)
    return Step(
        "upsert",
        lambda spark, table: table.write(_frame(spark, start, end, number)),
        lambda rows: {**rows, **_rows(start, end, number)},
    )


def _append(chance: random.Random, number: int) -> Step:
    start, end = _range(chance)

    def act(spark: Any, table: Any) -> None:
        if "-1" in table.table_schema.options.get("bucket", ""):  # a data source refuses these
            table.write(_frame(spark, start, end, number))
            return
        # A data source cannot bring the rows of a key together: one version of each.
        end_ = min(end, start + KEYS)
        rows = _frame(spark, start, end_, number)
        rows.write.format("keytide").mode("append").save(table.uri)
        if end_ < end:
            table.write(_frame(spark, end_, end, number))

    return Step("append", act, lambda rows: {**rows, **_rows(start, end, number)})


def _overwrite(chance: random.Random, number: int) -> Step:
    start, end = _range(chance)
    return Step(
        "overwrite",
        lambda spark, table: table.overwrite(_frame(spark, start, end, number)),
        lambda rows: _rows(start, end, number),
    )


def _merge(chance: random.Random, number: int) -> Step:
    start = chance.randrange(KEYS)
    end = start + chance.randrange(1, KEYS)

    def act(spark: Any, table: Any) -> None:
        merge = table.merge(_frame(spark, start, end, number), "target.id = source.id")
        merge.when_matched_update({"v": "source.v"}).when_not_matched_insert_all().execute()

    def model(rows: Rows) -> Rows:
        brought = _rows(start, end, number)
        return {**rows, **{k: (v, rows[k][1] if k in rows else s) for k, (v, s) in brought.items()}}

    return Step("merge", act, model)


def _delete(chance: random.Random, number: int) -> Step:
    by, rest = chance.choice((2, 7, 50)), chance.randrange(2)
    return Step(
        "delete",
        lambda spark, table: table.delete(f"id % {by} = {rest}"),
        lambda rows: {k: row for k, row in rows.items() if k % by != rest},
    )


def _update(chance: random.Random, number: int) -> Step:
    by, rest = chance.choice((2, 7, 50)), chance.randrange(2)
    return Step(
        "update",
        lambda spark, table: table.update({"v": "v + 1"}, f"id % {by} = {rest}"),
        lambda rows: {k: (v + (k % by == rest), s) for k, (v, s) in rows.items()},
    )


def _compact(chance: random.Random, number: int) -> Step:
    full = chance.random() < 0.5
    return Step("compact", lambda spark, table: table.compact(full=full), lambda rows: rows)


# -- the driver ----------------------------------------------------------------------------------


ATTEMPTS = 6
WRONG = 2
"""What the driver exits with if the table shows other rows than the dict."""


@dataclass(frozen=True)
class Life:
    """A table, the session of its driver, and the folder with its journal."""

    spark: Any
    table: Any
    folder: Path

    @property
    def done(self) -> int:
        """How many statements have ended."""
        journal = self.folder / "journal"
        return len(journal.read_text().splitlines()) if journal.exists() else 0

    def take(self, number: int, step: Step, before: Rows, after: Rows) -> None:
        """Make a statement happen once, whatever fails on the way."""
        begun, failures = self.folder / "begun", []
        is_begun = begun.exists() and begun.read_text() == str(number)
        for attempt in range(ATTEMPTS):
            if is_begun:  # it has happened, or it has not
                found = self.rows(attempt)
                self.check(number, step, found, after if found == after else before, failures)
                if found == after:
                    break
            is_begun = bool(begun.write_text(str(number)))
            try:
                step.act(self.spark, self.table)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {str(error)[:200]}")
                continue
            self.check(number, step, self.rows(number), after, failures)
            break
        else:
            sys.exit(f"step {number}: {step.name} failed {ATTEMPTS} times: {failures}")
        with (self.folder / "journal").open("a") as said:
            said.write(json.dumps([number, step.name, failures]) + "\n")

    def rows(self, number: int) -> Rows:
        """The rows, read by Spark or without it."""
        scan = self.table.scan()
        found = scan.to_spark(self.spark).toArrow() if number % 3 == 0 else scan.to_arrow()
        rows = found.to_pylist()
        keyed = {row["id"]: (row["v"], row["s"]) for row in rows}
        if len(keyed) < len(rows):
            print(f"WRONG: {len(rows) - len(keyed)} rows of keys that have another row")
            sys.exit(WRONG)
        return keyed

    def check(
        self, number: int, step: Step, found: Rows, expected: Rows, failures: list[str]
    ) -> None:
        """End the driver if the table shows other rows than the dict."""
        keys = found.keys() | expected.keys()
        wrong = {
            k: (found.get(k), expected.get(k)) for k in keys if found.get(k) != expected.get(k)
        }
        if wrong:
            some = dict(list(wrong.items())[:5])
            print(f"WRONG: step {number} {step.name}: {len(wrong)} keys: {some} {failures}")
            sys.exit(WRONG)


def main(folder: Path, seed: int, count: int) -> None:
    """Go through the statements, and compare the rows after each."""
    from cluster_settings import cluster_settings

    import keytide as kt

    os.environ["SPARK_WORKER_DIR"] = str(folder / "work")
    spark = kt.spark.session(cluster_settings(folder / f"driver-{os.getpid()}"))
    lake = kt.connect(str(folder / "lake"), spark=spark)
    if "default.t" not in lake.tables():
        kind = sorted(KINDS)[seed % len(KINDS)]
        lake.create_table("t", SCHEMA, ["id"], options=KINDS[kind])
    life = Life(spark, lake.table("t"), folder)
    done, after = life.done, {}
    for number, step in enumerate(steps_of(seed, count)):
        before, after = after, step.model(after)
        if number >= done:
            life.take(number, step, before, after)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
