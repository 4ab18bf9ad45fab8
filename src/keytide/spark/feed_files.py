"""The files of a change feed as lines, and the order of the lines.

Files written later come later, which is also how Spark assigns files to batches. For equal times
(in milliseconds), the file names decide, with numbers in them compared by value. Spark reads the
files of a batch in any order and in pieces, so each line carries the number of its piece, called a
block.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from keytide.base.process import scratch
from keytide.feeds.feed import FeedRequest
from keytide.spark.error_translation import file_errors

MESSAGE, BLOCK = "message", scratch("block")


_WRITTEN, _PATH, _START = map(scratch, ("written", "path", "start"))


BLOCKS_SCHEMA = pa.schema(
    [(BLOCK, pa.int64()), (_WRITTEN, pa.int64()), (_PATH, pa.string()), (_START, pa.int64())]
)
"""A block: its number, when its file was written, and its position in the file."""


_SAMPLE_MESSAGES = 1_000


# Only this character ends a line, so that a message is kept in full.
_LINES = {"lineSep": "\n"}


def sample(spark: SparkSession, source: str, table: str) -> pa.Array:
    """A sample of the messages. Raises `NotFoundError` and `DataError` as `file_errors`."""
    with file_errors(source, table):
        lines = spark.read.options(**_LINES).text(source).select(_message())
        return lines.limit(_SAMPLE_MESSAGES).toArrow().column(MESSAGE).combine_chunks()


def lines_of(spark: SparkSession, request: FeedRequest) -> DataFrame:
    """A stream of the lines of all files as they arrive: messages with their blocks."""
    stream = spark.readStream.format("text").options(**_LINES)
    if request.max_files_per_batch is not None:
        stream = stream.option("maxFilesPerTrigger", str(request.max_files_per_batch))
    path, start = F.col("_metadata.file_path"), F.col("_metadata.file_block_start")
    block = {
        BLOCK: F.xxhash64(path, start),
        _WRITTEN: F.unix_millis(F.col("_metadata.file_modification_time")),
        _PATH: path,
        _START: start,
    }
    columns = (value.alias(name) for name, value in block.items())
    # Spark's stream treats a path that is not a glob as a folder. The last character in brackets
    # makes a glob that matches only this path.
    source, path_text = request.source, request.source.rstrip("/")
    if path_text[-1:].isalnum() and not set("*?[]{}\\") & set(path_text):
        source = f"{path_text[:-1]}[{path_text[-1]}]"
    return stream.load(source).select(_message(), *columns)


def blocks_of(lines: pa.RecordBatch) -> pa.Table:
    """The blocks of some lines, one row of `BLOCKS_SCHEMA` for each."""
    found = lines.column(BLOCK)
    firsts = pc.index_in(pc.unique(found), value_set=found)
    return pa.Table.from_batches([lines.select(BLOCKS_SCHEMA.names).take(firsts)])


def blocks_in_order(decoded: DataFrame) -> tuple[int, ...]:
    """The blocks that occur in `decoded`, in the order of the feed."""
    blocks = decoded.where(F.col(_PATH).isNotNull()).select(*BLOCKS_SCHEMA.names).collect()
    return tuple(dict.fromkeys(row[BLOCK] for row in sorted(blocks, key=_place)))


def _place(block: Row) -> tuple[int, list[tuple[str, int]], str, int]:
    parts = _NUMBERED.findall(block[_PATH])
    natural = [(text, int(digits or 0)) for text, digits in parts]
    return block[_WRITTEN], natural, block[_PATH], block[_START]


_NUMBERED = re.compile(r"([^0-9]*)([0-9]{0,4000})")


def _message() -> Column:
    """The bytes of a line. Spark treats them as a string without validating it."""
    return F.col("value").cast("binary").alias(MESSAGE)
