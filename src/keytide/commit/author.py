"""The author of a commit: its user, the number of the commit, and the progress of a feed.

The progress is stored in the properties of the snapshot that contains the rows of the feed. Rows
and progress are one commit. So a reader that continues from the stored progress skips nothing and
repeats nothing. A rollback takes the progress back with the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from keytide.base.dataclass import dataclass, field
from keytide.errors import InvalidError, NotFoundError
from keytide.format.json_document import INTEGER
from keytide.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Operation, Snapshot
from keytide.snapshot.metadata import TableMetadata

# -- the author of a commit ------------------------------------------------------------------------


@dataclass(frozen=True)
class Author:
    """A commit user, and an identifier for one of its commits.

    The pair makes a commit idempotent: the second time, it changes nothing. The identifiers of a
    user only increase: a lower one that no snapshot has is refused.
    """

    user: str
    identifier: int = BATCH_COMMIT_IDENTIFIER
    operation: Operation | None = field(default=None, compare=False)
    """The statement that made the commit. None: the kind of the commit says enough."""

    @classmethod
    def of(cls, user: str | None, identifier: int | None) -> Author | None:
        """The author that a caller names, or None.

        Raises `InvalidError` for one without the other, and for values that cannot be stored.
        """
        if user is None:
            if identifier is not None:
                raise InvalidError(
                    f"commit_identifier is {identifier!r}, but commit_user is missing; set both "
                    "or neither"
                )
            return None
        if identifier is None:
            raise InvalidError(
                f"commit_user is {user!r}, but commit_identifier is missing: a second write "
                "would look like a retry of the first; number the writes of the user, or set "
                "neither"
            )
        if not isinstance(user, str) or not user or not _is_utf8(user):
            raise InvalidError(f"commit_user is {user!r}; expected a non-empty string")
        if not INTEGER.fits(identifier):
            raise InvalidError(f"commit_identifier is {identifier!r}; expected {INTEGER.name}")
        return cls(user, identifier)

    @classmethod
    def fresh(cls, prefix: str = "") -> Author:
        """A new commit user whose name begins with the prefix."""
        return cls(f"{prefix}{uuid.uuid4()}")

    def own(
        self, metadata: TableMetadata, newest: Snapshot | None, kind: CommitKind, after_id: int = 0
    ) -> Snapshot | None:
        """The author's commit with this identifier, in the snapshots after `after_id`.

        Searches back from `newest`, and stops at a commit of the user with a lower identifier, or
        where snapshots expired. Raises `InvalidError` if the user has committed a higher
        identifier, and no snapshot has this one.
        """
        higher: Snapshot | None = None
        for snapshot_id in range(0 if newest is None else newest.id, after_id, -1):
            try:
                snapshot = metadata.cached_snapshot(snapshot_id)
            # Expired: commits this old are unknown. Writers that retry do so soon.
            except NotFoundError:
                break
            # The kind counts too: a user's overwrite may have the same number as its append.
            if snapshot.commit_user != self.user or snapshot.commit_kind is not kind:
                continue
            if snapshot.commit_identifier == self.identifier:
                return snapshot
            if snapshot.commit_identifier < self.identifier:
                break
            higher = snapshot
        if higher is not None:
            raise InvalidError(
                f"table {metadata.name}: commit_identifier is {self.identifier}, but commit_user "
                f"{self.user!r} has committed {higher.commit_identifier} as snapshot {higher.id}, "
                f"and no snapshot has {self.identifier}. Use a higher identifier, or another "
                "commit_user for each job whose runs can overtake each other"
            )
        return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the progress of a feed ------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Properties that a commit sets, and the values that they must have before. None: not set."""

    before: Mapping[str, str | None]
    after: Mapping[str, str]
    stands_alone: bool = True
    """Whether it is worth a commit without rows."""


def current_progress(
    metadata: TableMetadata, newest: Snapshot | None, names: Collection[str]
) -> dict[str, str]:
    """The latest values of those properties that are set.

    Every commit of Keytide carries them on. Other engines do not, so earlier snapshots are searched
    too, as far as they exist.
    """
    progress: dict[str, str] = {}
    for snapshot_id in range(0 if newest is None else newest.id, 0, -1):
        try:
            snapshot = metadata.cached_snapshot(snapshot_id)
        except NotFoundError:
            break
        found = snapshot.properties or {}
        progress = {**{name: found[name] for name in names if name in found}, **progress}
        if len(progress) == len(names):
            break
    return progress
