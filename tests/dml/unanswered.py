"""A store that loses the answer to a creation, and cannot read what was created."""

from __future__ import annotations

from keytide.errors import DataError
from keytide.store import Store
from keytide.store.faults import Fault, FaultyStore


class Unanswered(FaultyStore):
    """A store on which nobody learns whether the snapshot `name` was made."""

    def __init__(self, inner: Store, name: str) -> None:
        super().__init__(inner, [Fault("create", f"*/{name}", action="lost-response")])
        self.name = name
        self.lost: list[str] = []

    def create(self, path: str, data: bytes) -> bool:
        try:
            return super().create(path, data)
        finally:
            if path.endswith(self.name):
                self.lost.append(path)

    def read(self, path: str) -> bytes:
        if self.lost and path.endswith(self.name):
            raise DataError(f"Cannot read {path}: injected fault")
        return super().read(path)
