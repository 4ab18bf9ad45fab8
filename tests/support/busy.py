"""A store beside which others are at work: they come before each request of whoever reads by it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from keytide.store import Store
from keytide.store.faults import Fault, FaultyStore

__all__ = ["Others", "busy_store"]


@dataclass
class Others:
    """What others do before the requests of a block, each time by one call of `come`.

    They come before the requests whose numbers, from 1, `before` holds for.
    """

    come: Callable[[], object]
    before: Callable[[int], bool] = lambda _: False
    requests: list[tuple[str, str]] = field(default_factory=list)
    is_coming: bool = False

    def note(self, operation: str, path: str) -> None:
        """A request is about to be made."""
        if self.is_coming:  # their own
            return
        self.requests.append((operation, path))
        if self.before(len(self.requests)):
            self.is_coming = True
            try:
                self.come()
            finally:
                self.is_coming = False


@dataclass(frozen=True)
class _Visit(Fault):
    """Strikes nothing: those who come do what they do, and the request goes on."""

    others: Others = field(kw_only=True)

    def matches(self, operation: str, path: str) -> bool:
        """Never."""
        self.others.note(operation, path)
        return False


class _BusyStore(FaultyStore):
    """On its way to another process it leaves the others behind."""

    def __reduce__(self) -> Any:
        return pickle.loads, (pickle.dumps(self.inner),)

    def __copy__(self) -> _BusyStore:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied


def busy_store(inner: Store, others: Others) -> FaultyStore:
    """A store with them beside it."""
    return _BusyStore(inner, [_Visit("read", others=others)])
