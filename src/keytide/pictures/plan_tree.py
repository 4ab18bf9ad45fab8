"""How something is carried out, as a tree of steps, with what each pruning left of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Plan", "Stage", "plan_of_lines"]


class Stage(Protocol):
    """What is left after one kind of pruning."""

    @property
    def stage(self) -> str:
        """The kind of pruning."""

    @property
    def partitions(self) -> int:
        """Partitions that are left."""

    @property
    def buckets(self) -> int:
        """Buckets that are left."""

    @property
    def files(self) -> int:
        """Files that are left."""

    @property
    def rows(self) -> int:
        """Stored rows of these files."""

    @property
    def bytes(self) -> int:
        """Bytes of these files."""


@dataclass(frozen=True)
class Plan:
    """A step with what is said of it, the files that each pruning left, and the steps below it."""

    title: str
    notes: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    children: tuple[Plan, ...] = ()


def plan_of_lines(lines: Sequence[str]) -> Plan:
    """What EXPLAIN says of a change, where a deeper line belongs to the one above it."""
    title, *rest = lines or ["nothing"]
    return Plan(title, children=tuple(_below(rest)))


def _below(lines: Sequence[str]) -> Iterator[Plan]:
    place = 0
    while place < len(lines):
        depth = _depth(lines[place])
        end = place + 1
        while end < len(lines) and _depth(lines[end]) > depth:
            end += 1
        yield Plan(lines[place].strip(), children=tuple(_below(lines[place + 1 : end])))
        place = end


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
