"""What tests ask of the parts of a source, whatever it is."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from keytide.predicate.predicate import Predicate
from keytide.sources.source import PinnedSource, Place, SourcePart
from keytide.store import LocalStore

ROWS_MAX = 3


def place(location: object, options: Mapping[str, str] | None = None) -> Place:
    """A place that is near an empty lake on local disk."""
    return Place(str(location), options or {}, LocalStore("/nonexistent"))


def rows_of(part: SourcePart, schema: pa.Schema, about_key: Predicate | None = None) -> list[Any]:
    """The rows of a part, read by a copy that has travelled; every batch is as it was asked for."""
    travelled: SourcePart = pickle.loads(pickle.dumps(part))
    rows: list[Any] = []
    for batch in travelled.batches(schema.names, about_key, ROWS_MAX):
        assert batch.schema.names == schema.names
        assert batch.schema.types == schema.types
        assert 0 < batch.num_rows <= ROWS_MAX
        rows += batch.to_pylist()
    return rows


def all_rows(pinned: PinnedSource, about_key: Predicate | None = None) -> list[Any]:
    """The rows of all parts, which a source tells that has travelled."""
    pinned = pickle.loads(pickle.dumps(pinned))
    return [
        row for part in pinned.parts(about_key) for row in rows_of(part, pinned.schema, about_key)
    ]


def counted(rows: Sequence[dict[str, Any]]) -> Counter[Any]:
    """Rows without an order."""
    return Counter(tuple(sorted(row.items(), key=lambda item: item[0])) for row in map(_flat, rows))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {name: repr(value) for name, value in row.items()}


def check_order(pinned: PinnedSource, number: str) -> None:
    """Where a source tells an order, it is that of the numbers which rows got as they came."""
    last, commit = -1, None
    for part in pinned.parts():
        assert commit is None or part.commit >= commit
        numbers = [row[number] for row in rows_of(part, pinned.schema)]
        if commit is None or part.commit > commit:
            before, commit = last, part.commit
        assert all(n > before for n in numbers), "a later commit has only later rows"
        if part.is_in_order:
            assert numbers == sorted(numbers)
            assert all(n > last for n in numbers)
        last = max([last, *numbers])
