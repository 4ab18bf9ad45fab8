"""What a table stores about the feed that fills it: the table of the source, and the epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keytide.catalogs.alter import alter_table
from keytide.definition.schema_evolution import SetOption
from keytide.feeds.epochs import Epoch, parse_epochs
from keytide.snapshot.pinned import StoredTable

__all__ = ["Origin"]

_EPOCHS, _SOURCE_TABLE = "user.feed-epochs", "user.feed-source-table"


@dataclass(frozen=True)
class Origin:
    """The origin of a table's rows. Rows are numbered by the epochs, so these only grow."""

    source_table: str | None = None
    epochs: tuple[Epoch, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Origin:
        """The origin in the options of a table. Raises `InvalidError` for invalid ones."""
        texts = options.get(_EPOCHS, "").split(",")
        return cls(options.get(_SOURCE_TABLE), parse_epochs(text for text in texts if text.strip()))

    @property
    def options(self) -> dict[str, str]:
        """The options of a table that store it."""
        epochs = ", ".join(epoch.text for epoch in self.epochs)
        found = {_EPOCHS: epochs, _SOURCE_TABLE: self.source_table or ""}
        return {name: value for name, value in found.items() if value}

    def keep(self, table: StoredTable) -> None:
        """Store it in the options of a table, unless they are the same."""
        stored = table.schema.options
        new = [SetOption(k, v) for k, v in self.options.items() if stored.get(k) != v]
        if new:
            alter_table(table.metadata, new)
