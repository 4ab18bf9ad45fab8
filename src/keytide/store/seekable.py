"""Seekable files on top of any function that reads byte ranges."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from typing import Any

__all__ = ["SeekableReader"]


class SeekableReader(io.RawIOBase):
    """A file of `size` bytes for readers that seek. Not safe for several threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._position = 0

    @abstractmethod
    def bytes_at(self, position: int, length: int) -> bytes:
        """`length` bytes, at least one and none beyond the end. Fewer if the file is truncated."""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position of the next read. It cannot be negative."""
        origin = (0, self._position, self.size)[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Bytes from the position, up to the end of the file."""
        left = max(0, self.size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        found = self.bytes_at(self._position, length) if length else b""
        self._position += len(found)
        return found

    def readinto(self, target: Any, /) -> int:
        """Read into a buffer."""
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)
