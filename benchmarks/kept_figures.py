"""Stores the results of a long run in a file as soon as they are available."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KeptFigures"]


@dataclass
class KeptFigures:
    """Results by rows and step, in a file if one is given. Earlier runs may have left some there.

    Raises `SystemExit` for a file of a run with other settings.
    """

    path: Path | None
    settings: Mapping[str, int]
    _sizes: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the existing results."""
        if self.path is None or not self.path.exists():
            return
        kept = json.loads(self.path.read_text())
        if kept["settings"] != dict(self.settings):
            raise SystemExit(f"{self.path} is of {kept['settings']}, not of {dict(self.settings)}: "
                             "name another file, or remove it")  # fmt: skip
        self._sizes = {int(rows): steps for rows, steps in kept["sizes"].items()}

    def has(self, rows: int, steps: Iterable[str]) -> bool:
        """Whether all of these steps have been measured."""
        return set(steps) <= set(self._sizes.get(rows, ()))

    def figures(self, rows: int) -> dict[str, float]:
        """The results of all steps."""
        return {name: value for step in self._sizes[rows].values() for name, value in step.items()}

    def add(self, rows: int, step: str, figures: dict[str, float]) -> None:
        """Store the results of a step, and replace earlier ones."""
        self._sizes.setdefault(rows, {})[step] = figures
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"settings": dict(self.settings), "sizes": self._sizes}
        # An interrupted run leaves the previous file complete.
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(kept, indent=1) + "\n")
        os.replace(unfinished, self.path)
