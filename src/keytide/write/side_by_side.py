"""Combines the results of parallel tasks on one state of a table with a key index.

Each task looked up keys independently, as the tasks of a MERGE do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from pyroaring import BitMap64

from keytide.errors import UnsupportedError
from keytide.format.index_files import DELETION_VECTORS, KEY_INDEX, IndexKey
from keytide.key_index.keys import Entries, Numbers, newest_of_each
from keytide.options import keys
from keytide.read.places import by_name
from keytide.snapshot.key_index import NewKeys
from keytide.snapshot.live_files import BucketIndex, DeadRows
from keytide.snapshot.state import TableView
from keytide.write.task import Written

__all__ = ["joined_upserts"]


def joined_upserts(view: TableView, parts: Sequence[Written]) -> Written:
    """The combined results of parallel tasks on one state of a table, as `Written.together`.

    If several tasks have rows of one key, the row with the largest comparison value is current, on
    a tie that of the later task. Raises `UnsupportedError` for such rows if the index cannot
    compare them, and if rows are merged.
    """
    joined = Written.together([replace(part, indexes={}) for part in parts])
    indexes: dict[IndexKey, list[BucketIndex]] = {}
    for part in parts:
        for key, index in part.indexes.items():
            indexes.setdefault(key, []).append(index)
    made = {key: found[0].joined(found[1:]) for key, found in indexes.items() if len(found) == 1}
    for key, found in indexes.items():
        if key[0] == KEY_INDEX and len(found) > 1:
            vectors = (DELETION_VECTORS, *key[1:])
            made[key], made[vectors] = _joined(view, [e for e in found if isinstance(e, NewKeys)])
    return replace(joined, indexes=made)


def _joined(view: TableView, parts: Sequence[NewKeys]) -> tuple[NewKeys, DeadRows]:
    """The index of a bucket, and its dead rows, after several independent tasks."""
    first, heads = parts[0], [part.index.head for part in parts]
    common = {*first.names}.intersection(*(part.names for part in parts[1:]))
    known = [file for file in heads[0].files if file.name in common]
    own_from = min(f.number for head in heads for f in head.files if f.name not in common)
    files, number = list(known), own_from
    entries = [first.index.later.take(_below(first, own_from))]
    for part in parts:
        own = [file for file in part.index.head.files if file.number >= own_from]
        shift = number - own_from
        files += [replace(file, number=file.number + shift) for file in own]
        new = part.index.later.take(np.flatnonzero(part.index.later.files >= own_from))
        entries.append(replace(new, files=new.files + shift))
        number += len(own)
    _refuse_undecided(view, Entries.together(entries[1:]))
    every = Entries.together(entries)
    order = np.lexsort((np.arange(len(every)), every.comparisons))
    later = newest_of_each(every.take(order))
    dead = _without_replaced(parts, every, later, {file.number: file.name for file in files})
    head = replace(heads[0], mark=max(head.mark for head in heads), next_number=number)
    known_runs = first.index.on(view.store)
    index = replace(known_runs, head=replace(head, files=tuple(files)), later=later)
    return NewKeys(index.counted(), dead, first.based_on), dead


def _refuse_undecided(view: TableView, new: Entries) -> None:
    """Raise `UnsupportedError` for rows of one key in several tasks that cannot be compared."""
    comparison = view.comparison
    if comparison.is_in_index and not view.options.merges_rows:
        return
    repeated = len(new) - len(newest_of_each(new))
    if repeated:
        why = (
            "merges the rows of a key"
            if view.options.merges_rows
            else f"compares them by {', '.join(comparison.names)}"
        )
        raise UnsupportedError(
            f"table {view.name}: tasks side by side wrote rows of {repeated} keys more than once, "
            f"and the table {why} ('{keys.UPSERT_MODE}' = '{view.options.upsert_mode}'), for which "
            f"each task had to know of the others; write them by one task, or in several statements"
        )


def _below(part: NewKeys, number: int) -> Numbers:
    return np.flatnonzero(part.index.later.files < number)


def _without_replaced(
    parts: Sequence[NewKeys], every: Entries, left: Entries, names: Mapping[int, str]
) -> DeadRows:
    """The dead rows of all parts, plus the rows that are superseded by a row of another part."""
    places = every.files << 40 | every.positions
    is_left = np.isin(places, left.files << 40 | left.positions)
    dead = parts[0].dead
    wide = any(isinstance(v, BitMap64) for part in parts for v in part.dead.vectors.values())
    for part in parts[1:]:
        dead = dead.marking({name: part.dead.of(name) for name in part.dead.vectors}, wide=wide)
    gone = by_name(every.files[~is_left], every.positions[~is_left], names)
    return dead.marking(gone, wide=wide)
