"""A sequence group: some columns of a table, with sequence fields of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keytide.options import TableOptions, keys
from keytide.types import Field

__all__ = ["SequenceGroup", "sequence_groups_of"]


@dataclass(frozen=True)
class SequenceGroup:
    """Sequence fields, and the columns whose versions they order."""

    sequence: tuple[str, ...]
    protected: tuple[str, ...]
    decides_about_row: bool = False
    padded: frozenset[str] = frozenset()
    """Sequence fields that are CHAR and are compared without trailing blanks."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the group."""
        return (*self.sequence, *self.protected)


def sequence_groups_of(fields: Iterable[Field], options: TableOptions) -> tuple[SequenceGroup, ...]:
    """The groups that a table's options define."""
    chars = {f.name for f in fields if f.type.root == "CHAR"}
    deciding = set(options.remove_record_on_sequence_group)
    groups = []
    for sequence, protected in options.by_columns(keys.SEQUENCE_GROUP).items():
        names = tuple(name.strip() for name in sequence.split(","))
        groups.append(
            SequenceGroup(
                sequence=names,
                protected=tuple(name.strip() for name in protected.split(",")),
                decides_about_row=not deciding.isdisjoint(names),
                padded=frozenset(chars & set(names)),
            )
        )
    return tuple(groups)
