"""A plan as a tree of steps, with the files that remain after each pruning step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Plan", "Stage", "plan_of_lines"]


class Stage(Protocol):
    """What remains after one kind of pruning."""

    @property
    def stage(self) -> str:
        """The kind of pruning."""

    @property
    def partitions(self) -> int:
        """The number of remaining partitions."""

    @property
    def buckets(self) -> int:
        """The number of remaining buckets."""

    @property
    def files(self) -> int:
        """The number of remaining files."""

    @property
    def rows(self) -> int:
        """The number of stored rows in these files."""

    @property
    def bytes(self) -> int:
        """The total size of these files, in bytes."""


@dataclass(frozen=True)
class Plan:
    """A step with its notes, the files that remain after each pruning step, and its child steps."""

    title: str
    notes: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    children: tuple[Plan, ...] = ()


def plan_of_lines(lines: Sequence[str]) -> Plan:
    """The plan in the EXPLAIN output of a change. Indented lines belong to the line above."""
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
