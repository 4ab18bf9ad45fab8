"""Races that always end alike: a store on which somebody else is faster."""

from __future__ import annotations

from collections.abc import Callable

import keytide as kt
from keytide.store import Store
from keytide.store.faults import FaultyStore


class Overtaken(FaultyStore):
    """Whenever a name is to be created, the next of `acts` is carried out just before."""

    def __init__(self, inner: Store, acts: list[Callable[[], object]]) -> None:
        super().__init__(inner)
        self.acts = acts

    def create(self, path: str, data: bytes) -> bool:
        if self.acts:
            self.acts.pop(0)()
        return super().create(path, data)


def overtaken(table: kt.Table, *acts: Callable[[], object]) -> kt.Table:
    """The table as it is seen by a writer whose commits come after those of `acts`."""
    return kt.Table(Overtaken(table.metadata.store, list(acts)), table.name)
