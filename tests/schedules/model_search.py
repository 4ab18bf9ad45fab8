"""Visits the worlds of the commit model: all of them, or those of a random way to the end."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from commit_model import Setting, World, steps, wrong

__all__ = ["Explored", "explore", "walk"]


class Explored(NamedTuple):
    """The number of worlds that can be reached, and the shortest way to a wrong one if any is."""

    worlds: int
    wrong: str | None = None
    way: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*self.way, self.wrong or f"{self.worlds} worlds, all right"])


def explore(setting: Setting) -> Explored:
    """Visit every world, in the order of the number of steps, until one is wrong."""
    first = setting.world()
    came: dict[World, tuple[World, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        world = waiting.popleft()
        for name, after in steps(world, setting):
            if after in came:
                continue
            came[after] = (world, name)
            what = wrong(after, setting)
            if what is not None:
                return Explored(len(came), what, _way(came, after))
            waiting.append(after)
    return Explored(len(came))


def _way(came: Mapping[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    way: list[str] = []
    while (last := came[world]) is not None:
        world, name = last
        way.insert(0, name)
    return tuple(way)


def walk(setting: Setting, chance: random.Random) -> tuple[list[str], World]:
    """A random way to the end of all actors. The steps by name, and the last world."""
    world, way = setting.world(), list[str]()
    while possible := [*steps(world, setting)]:
        name, world = chance.choice(possible)
        way.append(name)
    return way, world
