"""A source for tests: commits of versions in memory, of which each is a version to travel to.

With a `meeting` a part is given once as many are asked for; one that `is_asked` tells no sizes, as
a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from keytide.errors import NotFoundError
from keytide.predicate.predicate import Predicate, columns_of
from keytide.sources import source_state
from keytide.sources.source import Place

HISTORIES: dict[str, History] = {}


@dataclass
class History:
    """Commits, oldest first, and what was asked of them. `shuffled` are rewritten by somebody."""

    schema: pa.Schema
    commits: list[pa.Table] = field(default_factory=list)
    shuffled: set[int] = field(default_factory=set)
    pins: int = 0
    asked: list[Predicate | None] = field(default_factory=list)
    read: list[tuple[str, ...]] = field(default_factory=list)
    meeting: Barrier | None = None
    is_asked: bool = False

    def commit(self, *rows: tuple[Any, ...], rewritten: bool = False) -> None:
        written = [dict(zip(self.schema.names, row, strict=True)) for row in rows]
        self.commits.append(pa.Table.from_pylist(written, schema=self.schema))
        if rewritten:
            self.shuffled.add(len(self.commits))

    @property
    def asked_columns(self) -> set[str]:
        return {name for predicate in self.asked for name in columns_of(predicate)}


@dataclass(frozen=True)
class _Part:
    name: str
    number: int

    @property
    def _history(self) -> History:
        return HISTORIES[self.name]

    @property
    def rows(self) -> int | None:
        table = self._history.commits[self.number - 1]
        return None if self._history.is_asked else table.num_rows

    @property
    def stored_bytes(self) -> int | None:
        table = self._history.commits[self.number - 1]
        return None if self._history.is_asked else table.nbytes

    @property
    def commit(self) -> int:
        return self.number

    @property
    def is_in_order(self) -> bool:
        return self.number not in self._history.shuffled

    def batches(
        self, columns: Sequence[str], about_key: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        self._history.asked.append(about_key)
        self._history.read.append(tuple(columns))
        if self._history.meeting is not None:
            self._history.meeting.wait(timeout=20)
        table = self._history.commits[self.number - 1].select(list(columns))
        yield from table.to_batches(max_chunksize=rows_max)


@dataclass(frozen=True)
class _Pinned:
    name: str
    last: int

    cut_by = ()

    @property
    def schema(self) -> pa.Schema:
        return HISTORIES[self.name].schema

    @property
    def version(self) -> str:
        return str(self.last)

    def parts(self, about_key: Predicate | None = None) -> list[_Part]:
        HISTORIES[self.name].asked.append(about_key)
        return [_Part(self.name, number) for number in range(1, self.last + 1)]


@dataclass(frozen=True)
class _Source:
    location: str

    @property
    def _name(self) -> str:
        return self.location.rpartition("/")[2]

    def pin(self, version: str | int | None = None) -> _Pinned:
        history = HISTORIES[self._name]
        history.pins += 1
        last = len(history.commits) if version is None else int(version)
        if last > len(history.commits):
            raise NotFoundError(f"{self.location} has no version {version}")
        return _Pinned(self._name, last)


def _open(place: Place) -> _Source:
    return _Source(place.location)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let external tables have the format `history`."""
    format_ = source_state.ExternalFormat(_open, tells_order=True)
    monkeypatch.setattr(source_state, "FORMATS", {**source_state.FORMATS, "history": format_})
