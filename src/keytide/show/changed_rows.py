"""The changes between two snapshots, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from keytide.show.cells import Cell, Column

__all__ = ["ChangedRow", "ChangedRows"]


@dataclass(frozen=True)
class ChangedRow:
    """A row with its kind. `is_new` says for each cell whether it differs from the before image."""

    kind: str
    cells: tuple[Cell, ...]
    is_new: tuple[bool, ...]


@dataclass(frozen=True)
class ChangedRows:
    """The first changes after `start` up to `end`, and the mode that found them."""

    start: str
    end: str
    mode: str
    columns: tuple[Column, ...]
    rows: tuple[ChangedRow, ...]
    counts: tuple[tuple[str, int], ...]
    has_more: bool
    found_by: str
