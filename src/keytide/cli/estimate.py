"""The command that sizes an index of keys before there is one."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.cli.near import refuse_cache
from keytide.cli.output import Format, write_table
from keytide.cli.parameters import FormatOption
from keytide.index.estimate import Size, sizes_of
from keytide.record import rows_of

__all__ = ["upsert_estimate"]


def upsert_estimate(
    keys: Annotated[int, typer.Argument(help="How many keys the table will have.")],
    buckets: Annotated[int, typer.Option(help="Its buckets, over all partitions.")] = 1,
    files: Annotated[int, typer.Option(help="Data files of a bucket.")] = 256,
    comparison_bytes: Annotated[
        int,
        typer.Option(
            help="Bytes in which the values of the sequence field differ: 0 without one, 4 for "
            "seconds, 8 for milliseconds of more than 49 days."
        ),
    ] = 8,
    key_bytes: Annotated[
        int | None,
        typer.Option(
            help="Bytes of the key columns together, to see what Pinot's heap would take.",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Estimate how large the index of keys of a table with 'upsert.mode' becomes.

    The index lies beside the data files and is mapped; a write or a look-up reads what it needs of
    it. It has hashes of keys, so that their widths do not matter.

    Example: keytide upsert-estimate 100000000 --buckets 8 --key-bytes 16
    """
    refuse_cache("upsert-estimate")
    write_table(rows_of(Size, sizes_of(keys, buckets, files, comparison_bytes, key_bytes)), format)
