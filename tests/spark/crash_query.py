"""The streaming query of the crash tests, for drivers that are killed and for one that is not."""

from __future__ import annotations

from typing import Any

import keytide as kt


def run_to_the_end(spark: Any, way: str, source: str, path: str, checkpoint: str) -> None:
    """Take all files of a folder into a table, one a batch, from where the checkpoint stands."""
    stream = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1).json(source)
    table = kt.open_table(path)
    writer = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    if way == "sink":
        query = writer.format("keytide").start(path)
    else:
        query = writer.foreachBatch(lambda batch, number: table.write(batch)).start()
    query.awaitTermination()
