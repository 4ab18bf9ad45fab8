"""What a table has to show, row by row in plain Python, after docs/semantics.md."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fuzz_columns import rank

from keytide.types import DataType

__all__ = ["Definition", "Oracle", "Version"]

Row = dict[str, Any]


@dataclass
class Definition:
    """A table as its maker described it."""

    columns: dict[str, DataType]
    key: list[str]
    partition: list[str] = field(default_factory=list)
    engine: str = "deduplicate"
    sequence: list[str] = field(default_factory=list)
    descending: bool = False
    ignores: frozenset[str] = frozenset()
    tombstone: str | None = None
    marker: str | None = None
    functions: dict[str, str] = field(default_factory=dict)
    group: list[str] = field(default_factory=list)
    """Columns of the sequence group that `g` orders."""

    @property
    def stays_apart(self) -> bool:
        """Whether each version of one write keeps its place in the order."""
        if not self.sequence or self.engine not in ("partial-update", "aggregation"):
            return False
        return all(
            name.startswith(("first_", "last_"))
            or (name not in ("listagg", "collect") and self.columns[column].nullable)
            for column, name in self.functions.items()
        )

    def key_of(self, row: Mapping[str, Any]) -> str:
        """What tells the rows of two keys apart."""
        return repr(tuple(self.key_value(name, row[name]) for name in self.key))

    def partition_of(self, row: Mapping[str, Any]) -> str:
        """What tells the rows of two partitions apart."""
        return repr(tuple(self.key_value(name, row[name]) for name in self.partition))

    def key_value(self, name: str, v: Any) -> Any:
        """A value of a key column as it is stored: equal ones alike."""
        if isinstance(v, float):
            return v + 0.0
        return v.rstrip(" ") if self.columns[name].sql().startswith("CHAR") else v

    def place(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Where a version stands in the order, apart from its arrival."""
        return tuple(rank(row[n], self.columns[n], self.descending) for n in self.sequence)


class Version(NamedTuple):
    """One version of a key."""

    row: Row
    kind: str


@dataclass
class Oracle:
    """Versions as they are stored: what one write brought for a key is one version, or many."""

    definition: Definition
    stored: dict[str, list[Version]] = field(default_factory=dict)

    def copy(self) -> Oracle:
        """The same, with a life of its own."""
        return copy.deepcopy(self)

    def write(self, batch: Sequence[Version]) -> bool:
        """Take a write. Returns whether anything is left to commit."""
        kept = [v for v in map(self._marked, batch) if v.kind not in self.definition.ignores]
        brought: dict[str, list[Version]] = {}
        for version in kept:
            brought.setdefault(self.definition.key_of(version.row), []).append(version)
        for key, versions in brought.items():
            stays_apart = self.definition.stays_apart
            stored = versions if stays_apart else [self._folded(versions)]
            self.stored.setdefault(key, []).extend(stored)
        return bool(kept)

    def overwrite(self, batch: Sequence[Version], replaces: Callable[[Row], bool]) -> None:
        """Take an overwrite of the partitions that `replaces` names by a row of theirs."""
        self.stored = {k: v for k, v in self.stored.items() if not replaces(v[0].row)}
        self.write(batch)

    def rows(self) -> list[Row]:
        """The rows that a reader has to see."""
        merged = (self._folded(versions) for versions in self.stored.values())
        return [version.row for version in merged if version.kind[0] == "+"]

    def _marked(self, version: Version) -> Version:
        name = self.definition.tombstone
        definition = self.definition
        row = {
            n: definition.key_value(n, v) if n in definition.key else v
            for n, v in version.row.items()
        }
        if name is None:
            return Version(row, version.kind)
        v, is_text = row[name], self.definition.marker is not None
        dead = v == self.definition.marker if is_text else v is not None and v is not False
        return Version(row, "-D" if dead else version.kind)

    def _newest_of_group(self, versions: Sequence[Version]) -> Row | None:
        """The row that the columns of the sequence group come from, all at once."""
        kinds = self.definition.columns
        found = [v.row for v in versions if v.row.get("g") is not None]
        return (
            max(enumerate(found), key=lambda e: (rank(e[1]["g"], kinds["g"]), e[0]))[1]
            if found
            else None
        )

    def _folded(self, versions: Sequence[Version]) -> Version:
        """One version made of several in order of arrival."""
        definition = self.definition
        if definition.engine == "first-row":
            return versions[0]
        ordered = sorted(versions, key=lambda version: definition.place(version.row))
        if definition.engine == "deduplicate" or len(ordered) == 1:
            return ordered[-1]
        last = ordered[-1].row
        row = {n: last[n] if n in definition.key else None for n in definition.columns}
        newest = self._newest_of_group(ordered)
        for name in definition.columns:
            values = [version.row[name] for version in ordered]
            if name in definition.key or name in definition.sequence:
                row[name] = last[name]
            elif definition.group and name in ("g", *definition.group):
                row[name] = None if newest is None else newest[name]
            elif definition.engine == "partial-update":
                row[name] = _last_known(values)
            else:
                row[name] = _FUNCTIONS[definition.functions[name]](values)
        return Version(row, "+I")


def _known(values: list[Any]) -> list[Any]:
    return [v for v in values if v is not None]


def _last_known(values: list[Any]) -> Any:
    return next((v for v in reversed(values) if v is not None), None)


def _first_known(values: list[Any]) -> Any:
    return next((v for v in values if v is not None), None)


def _folding(fold: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return lambda values: fold(_known(values)) if _known(values) else None


_FUNCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": _folding(sum),
    "max": _folding(max),
    "min": _folding(min),
    "bool_and": _folding(all),
    "bool_or": _folding(any),
    "last_value": lambda values: values[-1],
    "last_non_null_value": _last_known,
    "first_value": lambda values: values[0],
    "first_non_null_value": _first_known,
    "listagg": lambda values: _folding(",".join)([v for v in values if v and v.strip()]),
    "collect": _folding(lambda lists: [item for each in lists for item in each]),
}
