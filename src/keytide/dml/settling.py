"""How far a statement is on its way to its outcome."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settling"]


@dataclass
class Settling:
    """Whether the commit of a statement has begun. Driver only; changes.

    From then on the commit tidies up after itself. Where its outcome is unknown, a snapshot may
    name what the statement wrote, so an abort that comes later has to leave it.
    """

    has_begun: bool = False
