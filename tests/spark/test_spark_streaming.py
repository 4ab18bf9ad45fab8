"""The streaming sink is exactly-once with no option: restarts, replays, and kills."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from table_rows import by_key

pytestmark = pytest.mark.spark

FILES, ROWS, KILLS = 4, 40, 3
# One number a row, counted up: a batch applied twice or not at all shows in the sums.
DRIVER = """
import sys
import keytide as kt

source, table, checkpoint = sys.argv[1:]
spark = kt.spark.session(master="local[2]", spark_driver_memory="512m")
stream = spark.readStream.schema("id LONG, n LONG").option("maxFilesPerTrigger", "1").json(source)
query = (
    stream.writeStream.format("keytide").option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start(table)
)
query.awaitTermination()
print("done", flush=True)
"""


def make_feed(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        lines = [f'{{"id": {key}, "n": {number}}}' for key in range(number, number + ROWS)]
        (folder / f"part-{number}.json").write_text("\n".join(lines))


def new_table(warehouse: str) -> kt.Table:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    options = {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum", "bucket": "2"}
    return kt.connect(warehouse).create_table("sums", schema, ["id"], options=options)


def expected() -> dict[int, int]:
    sums: dict[int, int] = {}
    for number in range(FILES):
        for key in range(number, number + ROWS):
            sums[key] = sums.get(key, 0) + number
    return sums


def run(spark: Any, tmp_path: Path, table: kt.Table) -> None:
    stream = spark.readStream.schema("id LONG, n LONG").option("maxFilesPerTrigger", "1")
    query = (
        stream.json(str(tmp_path / "feed"))
        .writeStream.format("keytide")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(table.uri)
    )
    query.awaitTermination()


@pytest.mark.takes_turns
def test_every_batch_is_applied_once_and_a_replayed_one_not_again(
    tmp_path: Path, warehouse: str, spark: Any
) -> None:
    make_feed(tmp_path / "feed")
    table = new_table(warehouse)
    run(spark, tmp_path, table)
    assert by_key(table, "n", key="id") == expected()
    commits = [s.commit_identifier for s in table.snapshots()]
    assert commits == list(range(FILES))

    # The driver died after the last batch was in the table and before Spark noted it.
    for note in (tmp_path / "checkpoint" / "commits").glob(f"*{FILES - 1}*"):
        note.unlink()
    run(spark, tmp_path, table)

    assert by_key(table, "n", key="id") == expected()
    assert [s.commit_identifier for s in table.snapshots()] == commits


@pytest.mark.soak
@pytest.mark.driver
@pytest.mark.timeout(900)
def test_a_driver_killed_at_random_moments_loses_and_repeats_nothing(
    tmp_path: Path, warehouse: str
) -> None:
    make_feed(tmp_path / "feed")
    table = new_table(warehouse)
    arguments = [str(tmp_path / "feed"), table.uri, str(tmp_path / "checkpoint")]
    moments = random.Random(7)
    kills = 0
    for _ in range(12):
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        if kills < KILLS and kill_after_next_commit(driver, table, moments.uniform(0, 0.4)):
            kills += 1
            continue
        output, _ = driver.communicate(timeout=400)
        if "done" in output:
            break
    shutil.rmtree(tmp_path / "feed")

    assert kills == KILLS
    assert by_key(table, "n", key="id") == expected()


def kill_after_next_commit(driver: subprocess.Popen[str], table: kt.Table, delay: float) -> bool:
    """SIGKILL a driver some time after it made a snapshot; False when it ended before."""
    before = len(table.snapshots())
    while driver.poll() is None:
        if len(table.snapshots()) > before:
            time.sleep(delay)
            if driver.poll() is not None:
                return False
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            return True
        time.sleep(0.02)
    return False
