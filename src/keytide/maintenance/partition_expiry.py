"""Expiry of partitions: drops partitions that are too old, in one commit that deletes their files.

The age comes from the values of the partition columns, or from the time of the last write.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import polars as pl
import pyarrow as pa

from keytide.base import record
from keytide.base.dataclass import dataclass
from keytide.commit.transaction import Transaction
from keytide.definition.times import PartitionTimes
from keytide.errors import ConflictError, InvalidError
from keytide.format.binary_row import decode_rows
from keytide.options import keys
from keytide.options.values import duration_ms
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.write.partition_spec import TouchedPartitions
from keytide.write.refusals import writable_view

# -- expiry of partitions --------------------------------------------------------------------------


VALUES_TIME, UPDATE_TIME = "values-time", "update-time"


@dataclass(frozen=True)
class ExpiredPartitions:
    """The partitions that were dropped because of their age, by their paths, oldest first.

    `snapshot_id` is None if there were none, and for a dry run.
    """

    snapshot_id: int | None
    partitions: tuple[str, ...]

    def to_arrow(self) -> pa.Table:
        """One row for each partition."""
        return pa.table({"expired_partitions": pa.array(self.partitions, pa.string())})

    def _repr_html_(self) -> str:
        return record.heading("expired partitions", str(self.snapshot_id or "")) + record.bullets(
            self.partitions
        )


@dataclass(frozen=True)
class PartitionAge:
    """The requested age. None means the option of the table."""

    expiration_time: str | timedelta | None = None
    strategy: str | None = None
    pattern: str | None = None
    formatter: str | None = None
    partitions_max: int | None = None


def expire_partitions(
    table: StoredTable, age: PartitionAge, *, dry_run: bool = False,
    now: Callable[[], datetime] = datetime.now,
) -> ExpiredPartitions:  # fmt: skip
    """Drop partitions in one commit, and do nothing else."""
    view = writable_view(table)
    if not view.schema.partition_keys:
        raise InvalidError(f"table {table.name} has no partitions, so none can expire")
    with view.naming_table():
        expiry = _Expiry.of(view, age, now())
    transaction = Transaction.begin(table, view)
    found = expiry.expired(transaction.state.live)
    paths = tuple(view.bucket_directory(each, 0).rpartition("/")[0] for each in found)
    if dry_run or not found:
        return ExpiredPartitions(None, paths)
    wanted = TouchedPartitions(frozenset(found))
    with transaction:
        if expiry.strategy == VALUES_TIME:
            return ExpiredPartitions(transaction.replace(wanted).snapshot_id, paths)
        try:
            return ExpiredPartitions(transaction.relayout(wanted).snapshot_id, paths)
        except ConflictError:  # another process wrote to one of them, so it is no longer old
            return ExpiredPartitions(None, paths)


@dataclass(frozen=True)
class _Expiry:
    view: TableView
    times: PartitionTimes
    strategy: str
    before: datetime
    """A wall-clock time of this machine, as in other engines."""
    partitions_max: int

    @classmethod
    def of(cls, view: TableView, age: PartitionAge, now: datetime) -> _Expiry:
        """Raises `InvalidError` for invalid settings."""
        options = view.options
        lifetime_ms = options.partition_lifetime_ms
        if age.expiration_time is not None:
            lifetime_ms = duration_ms(age.expiration_time, "expiration_time")
        if lifetime_ms is None:
            raise InvalidError(
                "the age at which partitions expire is not set: give expiration_time, or set "
                f"'{keys.PARTITION_EXPIRATION_TIME}'"
            )
        strategy = age.strategy or options.partition_expiration_strategy
        if strategy not in (VALUES_TIME, UPDATE_TIME):
            raise InvalidError(
                f"strategy is {strategy!r}; expected {VALUES_TIME!r} or {UPDATE_TIME!r}"
            )
        fields = view.schema.partition_fields()
        times = PartitionTimes.of(fields, options, age.pattern, age.formatter)
        most = age.partitions_max
        if most is not None and most < 1:
            raise InvalidError(f"max_expires is {most}; expected 1 or more")
        most = options.partitions_expired_max if most is None else most
        return cls(view, times, strategy, now - timedelta(milliseconds=lifetime_ms), most)

    def expired(self, live: LiveFiles) -> list[bytes]:
        """The partitions that are too old, oldest first."""
        if self.strategy == VALUES_TIME:
            partitions = list(live.partition_buckets)
            columns = decode_rows(partitions, [field.type for field in self.times.fields])
            values = zip(*(column.to_pylist() for column in columns), strict=True)
            times = (self.times.time(each) for each in values)
            found = {partition: time for partition, time in zip(partitions, times, strict=True)
                     if time is not None}  # fmt: skip
        else:
            # When a file of each partition was last created, by the wall clock of its writer.
            time, epoch = pl.col("_CREATION_TIME"), datetime(1970, 1, 1)
            made = live.files.columns("_PARTITION", "_CREATION_TIME").group_by("_PARTITION")
            newest = made.agg(time.max(), time.is_null().any().alias("some"))
            found = {
                partition: epoch + timedelta(milliseconds=time_ms)
                for partition, time_ms, is_untold in newest.iter_rows()
                if not is_untold
            }
        old = [(time, partition) for partition, time in found.items() if time < self.before]
        return [partition for _, partition in sorted(old)[: self.partitions_max]]
