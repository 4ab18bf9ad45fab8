"""Decision whether work runs in threads of the driver or on executors.

The decision is made once per statement, from sizes that are known before anything is read: sizes of
files, and Spark's size estimates of DataFrames. The tasks are the same in both places.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from keytide.errors import InvalidError
from keytide.options import parse_memory_size
from keytide.spark.connect import is_connect
from keytide.spark.internals import known_bytes

__all__ = ["COPIES", "SETTING", "Place", "bytes_of_rows", "place_of"]

SETTING = "spark.keytide.driver-work.max-size"
"""The session setting that overrides a table's 'spark.driver-work.max-size'."""

COPIES = 4
"""Factor for rows that pass through Spark: they are held as rows and as columns, uncompressed."""


@dataclass(frozen=True)
class Place:
    """The driver, for work up to its size limit, otherwise executors."""

    known_bytes: int | None
    """The size of the data that is read, None if it is unknown."""
    bytes_max: int

    @property
    def is_driver(self) -> bool:
        """Whether threads of the driver do the work."""
        return self.known_bytes is not None and self.known_bytes <= self.bytes_max

    def __str__(self) -> str:
        if self.known_bytes is None:
            return "on executors, because the size of the input is unknown"
        if self.bytes_max <= 0:
            return "on executors, because driver work is disabled"
        where, relation = (
            ("in the driver", "at most") if self.is_driver else ("on executors", "more than")
        )
        return f"{where}, because {self.known_bytes:,} bytes are {relation} {self.bytes_max:,}"


def place_of(spark: SparkSession, bytes_max: int, *sizes: int | None) -> Place:
    """The place for work on data of these sizes. `bytes_max` is the limit set by the table.

    Raises `InvalidError` for a session setting that is not a size.
    """
    known = None if None in sizes else sum(size or 0 for size in sizes)
    limit = _bytes_max(spark, bytes_max)
    return Place(known, limit if limit > 0 else -1)


def _bytes_max(spark: SparkSession, of_table: int) -> int:
    given = spark.conf.get(SETTING, "")
    if not given:
        return of_table
    try:
        return parse_memory_size(given)
    except ValueError as error:
        raise InvalidError(
            f"the session setting {SETTING} is {given!r}; expected a size such as '128 mb', or 0 "
            "for executors only"
        ) from error


def bytes_of_rows(rows: DataFrame) -> int | None:
    """The size to count for rows that pass through Spark, None if it is unknown."""
    size = None if is_connect(rows) else known_bytes(rows)
    return None if size is None else COPIES * size
