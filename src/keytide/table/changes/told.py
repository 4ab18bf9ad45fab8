"""The rows that a changelog has told of, where compactions make it: those that they have seen."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from keytide.table.state.live_files import files_of
from keytide.table.state.state import TableState

__all__ = ["told_of"]


def told_of(state: TableState) -> TableState:
    """The state with the files alone whose rows the changelog up to it adds up to.

    Changelogs that writes store add up to no files: for them, and where there is none, all files.
    """
    options = state.view.options
    if state.snapshot is None or not options.compactions_tell:
        return state
    level = pl.col("_LEVEL")
    is_told = level > 0
    if options.changelog_producer == "full-compaction":
        is_told &= level == level.max().over("_PARTITION", "_BUCKET")
    files = state.live.files
    told = files.columns("_PARTITION", "_BUCKET", "_LEVEL").select(is_told).to_series()
    return replace(state, live=files_of(state.snapshot, files.filter(told)))
