"""The explanation of a row: the versions of its key."""

from __future__ import annotations

from dataclasses import dataclass

from keytide.show.cells import Cell

__all__ = ["Story", "Version"]


@dataclass(frozen=True)
class Version:
    """A stored version and its effect. `gives` are the columns whose value it provided.

    Versions of external tables have no sequence number and no schema.
    """

    number: int
    kind: str
    place: str
    schema_id: int | None
    sequence: int | None
    values: tuple[tuple[str, Cell], ...]
    gives: frozenset[str]
    outcome: str


@dataclass(frozen=True)
class Story:
    """The versions in merge order, and the resulting row with the origin of each value."""

    key: tuple[tuple[str, Cell], ...]
    snapshot_id: int | None
    merge_engine: str
    versions: tuple[Version, ...]
    row: tuple[tuple[str, Cell, tuple[int, ...]], ...] | None
    has_expired: bool
