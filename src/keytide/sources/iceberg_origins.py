"""The commits from which the rows of an Iceberg table's files come.

Files of a snapshot that only appended have the rows of its commit. Other snapshots may have copied
rows of older files, so their data sequence number does not say when these rows arrived. A snapshot
records what happened to older files until it expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from keytide.sources.commit_order import Origin, hull

__all__ = ["SnapshotFacts", "origins_of"]


@dataclass(frozen=True)
class SnapshotFacts:
    """A snapshot among the ancestors of the one that is read. Sequence numbers start at 1."""

    id: int
    sequence_number: int
    operation: str


def origins_of(
    files: Sequence[tuple[int | None, int]],
    snapshots: Mapping[int, SnapshotFacts],
    removed_by: Callable[[int], Sequence[int]],
) -> list[Origin]:
    """The origin of files, given by the snapshot and the sequence number that added each.

    `removed_by` returns the sequence numbers of the files that a snapshot removed. It is called for
    snapshots that did not only append. A file of an expired snapshot can be from any commit up to
    its own.
    """
    by_number = {facts.sequence_number: facts for facts in snapshots.values()}
    removed = _removed(files, snapshots, by_number, removed_by)
    known: dict[int, Origin] = {}
    for number in sorted(removed):  # what a snapshot removed was added before it
        known[number] = _origin(by_number[number], removed[number], known, by_number)
    return [_looked_up(number, snapshots.get(id_ or 0), known) for id_, number in files]


def _looked_up(number: int, facts: SnapshotFacts | None, known: Mapping[int, Origin]) -> Origin:
    if facts is None or number < 1:
        return Origin(0, number)
    return known.get(number, Origin.of_commit(number))


def _removed(
    files: Sequence[tuple[int | None, int]],
    snapshots: Mapping[int, SnapshotFacts],
    by_number: Mapping[int, SnapshotFacts],
    removed_by: Callable[[int], Sequence[int]],
) -> dict[int, Sequence[int]]:
    """What relevant snapshots that did not only append have removed."""
    waiting = {number for id_, number in files if id_ in snapshots}
    found: dict[int, Sequence[int]] = {}
    while waiting:
        number = waiting.pop()
        facts = by_number.get(number)
        if facts is None or facts.operation == "append" or number in found:
            continue
        found[number] = removed_by(facts.id)
        waiting |= {*found[number]}
    return found


def _origin(
    facts: SnapshotFacts,
    removed: Sequence[int],
    known: Mapping[int, Origin],
    by_number: Mapping[int, SnapshotFacts],
) -> Origin:
    """The origin of files from a snapshot that did not only append."""
    if not removed:
        # Deletes by position add only new files. Rewriting removes files.
        number = facts.sequence_number
        return Origin.of_commit(number) if facts.operation == "overwrite" else Origin(0, number)
    copied = hull([_looked_up(number, by_number.get(number), known) for number in removed])
    if facts.operation == "replace":
        return copied
    return Origin(copied.first, facts.sequence_number)
