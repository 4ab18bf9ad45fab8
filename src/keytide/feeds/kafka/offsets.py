"""The offsets that a table has reached in topics, stored in its snapshots.

A snapshot has a property for each topic, `keytide.kafka.<topic>`, with the topic's id and the next
offset of each partition as JSON. The id detects a topic that was recreated with the same name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from keytide.base.dataclass import dataclass
from keytide.commit.change import Progress, current_progress
from keytide.errors import DataError
from keytide.snapshot.stored_table import StoredTable

Offsets = Mapping[str, "TopicOffsets"]


_PREFIX = "keytide.kafka."


@dataclass(frozen=True)
class TopicOffsets:
    """The next offset of each partition of a topic with an id."""

    id: str
    next: Mapping[int, int]

    def to_text(self) -> str:
        """The value of the property."""
        numbered = {str(partition): self.next[partition] for partition in sorted(self.next)}
        return json.dumps({"id": self.id, "next": numbered}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, name: str) -> TopicOffsets:
        """Parse the output of `to_text`, from the property `name`.

        Raises `DataError` for other text.
        """
        try:
            found = json.loads(text)
            numbered = {int(key): int(value) for key, value in found["next"].items()}
            return cls(str(found["id"]), numbered)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(
                f"property {name!r} of the latest snapshot is {text!r}, which are not offsets of "
                "a topic; roll the table back to an earlier snapshot"
            ) from error


def stored_offsets(table: StoredTable, topics: Iterable[str]) -> dict[str, TopicOffsets]:
    """The offsets for some topics in the latest snapshot of a table, without unknown topics."""
    names = {_PREFIX + topic: topic for topic in topics}
    stored = current_progress(table.metadata, table.metadata.latest_snapshot(), names)
    return {names[name]: TopicOffsets.from_text(text, name) for name, text in stored.items()}


def stored_topics(table: StoredTable) -> tuple[str, ...]:
    """The topics in the latest snapshot."""
    newest = table.metadata.latest_snapshot()
    stored = {} if newest is None else newest.properties or {}
    return tuple(sorted(n.removeprefix(_PREFIX) for n in stored if n.startswith(_PREFIX)))


def progress_of(before: Offsets, after: Offsets) -> Progress:
    """The record of a commit that advances from some offsets to others."""
    was = {_PREFIX + name: before.get(name) for name in after}
    return Progress(
        {name: None if offsets is None else offsets.to_text() for name, offsets in was.items()},
        {_PREFIX + name: offsets.to_text() for name, offsets in after.items()},
    )
