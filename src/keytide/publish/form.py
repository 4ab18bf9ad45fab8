"""The interface of a format in which tables are published.

A format has its own numbered versions. A version is created by creating a file that does not exist:
of several publishers, one creates the next version, and the others read again. A version is
computed from the previous version and the state to show. So a missed or lost version is made up for
by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from keytide.format.snapshot import Snapshot
from keytide.publish.content import Content
from keytide.store import Store

__all__ = ["Draft", "Form", "Version", "shows"]


class Version(Protocol):
    """One version of the published form, as a value."""

    @property
    def version(self) -> int:
        """Its number."""
        ...

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that it shows. None if it does not say."""
        ...

    @property
    def commit(self) -> int | None:
        """The `commit_number` of that snapshot. None if it does not say."""
        ...

    @property
    def by_name(self) -> Mapping[str, Any]:
        """The data files that its readers read, by name."""
        ...


def shows(version: Version | None, snapshot: Snapshot | None) -> bool:
    """Whether a version shows a snapshot, and not another one that had its id before a rollback."""
    if version is None or snapshot is None:
        return version is None and snapshot is None
    # Earlier releases did not record the commit.
    is_commit = version.commit in (None, snapshot.commit_number)
    return version.snapshot_id == snapshot.id and is_commit


V = TypeVar("V", bound=Version)
V_co = TypeVar("V_co", bound=Version, covariant=True)


class Draft(Protocol[V_co]):
    """The next version, about to be created."""

    def create(self, store: Store) -> V_co | None:
        """Create it.

        None if another publisher has created this number: then nothing is left behind. Raises
        `DataError` if the store fails. The version may have been created nevertheless.
        """
        ...


class Form(Protocol[V]):
    """A format for publishing. Stores are rooted at the table."""

    @property
    def name(self) -> str:
        """Its name in the option 'publish'."""
        ...

    def why_not(self, content: Content) -> str | None:
        """Why readers of the format would not see the right rows. None if they would."""
        ...

    def newest(self, store: Store, known: V | None) -> V | None:
        """The latest version, found from a known one or by a new search. None if there is none.

        Raises `DataError` if it cannot be read.
        """
        ...

    def is_outdated(self, before: V) -> bool:
        """Whether a version was created with newer options than these, so that those apply."""
        ...

    def draft(self, before: V | None, content: Content, now_ms: int) -> Draft[V] | None:
        """The version that shows the content, computed from the previous one.

        None if that already shows it.
        """
        ...

    def is_there(self, store: Store, version: V) -> bool:
        """Whether a known version still exists."""
        ...

    def take_back(self, store: Store, version: V) -> None:
        """Remove a version that was created on top of one that no longer exists."""
        ...

    def announce(self, store: Store, version: V) -> None:
        """Tell readers about a new version, if they do not find it by themselves."""
        ...

    def tidy(self, store: Store, version: V, content: Content, now_ms: int) -> None:
        """Work that is due after a version is created: write checkpoints, and delete what is
        old.
        """
        ...
