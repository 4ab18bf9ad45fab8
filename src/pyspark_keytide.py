"""How Spark finds the format `keytide` by itself.

When a session first meets a data source that it does not know, whatever that is, Spark imports
every module of its Python path named `pyspark_...`, and takes their `DefaultSource`. So this one
loads nothing of Keytide before somebody uses the format, and cannot fail.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source `keytide`, as `keytide.spark.data_source.KeytideSource` describes it."""

    def __new__(cls, options: dict[str, str]) -> DataSource:
        """The source itself, which takes the place of this one."""
        from keytide.spark.data_source import KeytideSource

        return KeytideSource(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "keytide"
