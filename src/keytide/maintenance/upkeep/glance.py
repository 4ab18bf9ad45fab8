"""What a glance at a table shows: its columns, its latest snapshots, its largest buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from keytide.errors import KeytideError
from keytide.format.schema import TableSchema
from keytide.maintenance.upkeep.layout import GLANCE, Layout, layout_of
from keytide.maintenance.upkeep.timeline import Timeline, timeline_of
from keytide.snapshot.stored import StoredTable

__all__ = ["Glance", "glance_of"]

_SNAPSHOTS = 20

T = TypeVar("T")


@dataclass(frozen=True)
class Glance:
    """A table at one moment. A part is None if it could not be read; `problems` say why."""

    schema: TableSchema | None
    timeline: Timeline | None
    layout: Layout | None
    problems: tuple[Exception, ...]


def glance_of(table: StoredTable) -> Glance:
    """The table now. One request for its newest state; reads metadata only. Never raises for
    what is missing, damaged or out of reach.
    """
    problems: list[Exception] = []

    def tried(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (KeytideError, OSError) as error:
            if str(error) not in map(str, problems):
                problems.append(error)
            return None

    seen = tried(table.pinned)
    if seen is None:
        return Glance(None, None, None, tuple(problems))
    return Glance(
        tried(lambda: seen.schema),
        tried(lambda: timeline_of(seen, count=_SNAPSHOTS)),
        tried(lambda: layout_of(seen, room=GLANCE)),
        tuple(problems),
    )
