"""What a form in which tables are published has to say of itself.

A form has versions of its own, which are numbered and made by creating a file that is not there:
of several publishers one makes the next version, and the others look again. A version is made of
the one before it and of what it is to show, so one that was missed, or lost, is made up for by the
next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from keytide.store import Store
from keytide.table.publishing.content import Content

__all__ = ["Draft", "Form", "Version"]


class Version(Protocol):
    """One version of the published form, as a value."""

    @property
    def version(self) -> int:
        """Its number."""
        ...

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that it shows; None where that is not told."""
        ...

    @property
    def by_name(self) -> Mapping[str, Any]:
        """The data files that its readers read, by their names."""
        ...


V = TypeVar("V", bound=Version)
V_co = TypeVar("V_co", bound=Version, covariant=True)


class Draft(Protocol[V_co]):
    """The next version, about to be made."""

    def create(self, store: Store) -> V_co | None:
        """Make it. None where another one has its number: nothing is left behind then.

        Raises `DataError` where the store fails; it may have been made all the same.
        """
        ...


class Form(Protocol[V]):
    """A form of publishing. Stores are rooted at the table."""

    @property
    def name(self) -> str:
        """What the option 'publish' calls it."""
        ...

    def why_not(self, content: Content) -> str | None:
        """Why readers of the form would not see what its files show; None where they would."""
        ...

    def newest(self, store: Store, known: V | None) -> V | None:
        """The newest version, read on from one that was seen before, or anew; None for none.

        Raises `DataError` where it cannot be read.
        """
        ...

    def is_outdated(self, before: V) -> bool:
        """Whether a version was made by newer options than this goes by, so that these count."""
        ...

    def draft(self, before: V | None, content: Content, now_ms: int) -> Draft[V] | None:
        """The version that shows the content, made of the one before; None where that shows it."""
        ...

    def is_there(self, store: Store, version: V) -> bool:
        """Whether a version that was seen still is there."""
        ...

    def take_back(self, store: Store, version: V) -> None:
        """Remove a version that was made on top of one that is not there any more."""
        ...

    def announce(self, store: Store, version: V) -> None:
        """Tell readers of a version that was made, where they do not find it by themselves."""
        ...

    def tidy(self, store: Store, version: V, content: Content, now_ms: int) -> None:
        """What is due once a version is made: to sum up the log, and to drop what is old."""
        ...
