"""The command that estimates the size of a key index before it exists."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.base.record import rows_of
from keytide.cli.near import refuse_cache
from keytide.cli.output import Format, write_table
from keytide.cli.parameters import FormatOption
from keytide.key_index.estimate import Size, sizes_of

__all__ = ["upsert_estimate"]


def upsert_estimate(
    keys: Annotated[int, typer.Argument(help="Number of keys in the table.")],
    buckets: Annotated[int, typer.Option(help="Number of buckets over all partitions.")] = 1,
    files: Annotated[int, typer.Option(help="Number of data files per bucket.")] = 256,
    comparison_bytes: Annotated[
        int,
        typer.Option(
            help="Number of bytes in which the values of the sequence field differ: 0 without a "
            "sequence field, 4 for seconds, 8 for milliseconds over more than 49 days."
        ),
    ] = 8,
    key_bytes: Annotated[
        int | None,
        typer.Option(
            help="Total size of the key columns in bytes, to compare with the heap that Pinot "
            "would need.",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Estimate the size of a key index.

    Tables with 'upsert.mode' have a key index. The index is stored next to the data files and
    memory-mapped. A write or a lookup reads only the parts that it needs. The index contains hashes
    of keys, so the size of the keys does not matter.

    Example: keytide upsert-estimate 100000000 --buckets 8 --key-bytes 16
    """
    refuse_cache("upsert-estimate")
    write_table(rows_of(Size, sizes_of(keys, buckets, files, comparison_bytes, key_bytes)), format)
