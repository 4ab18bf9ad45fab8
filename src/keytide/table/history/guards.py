"""Tags that guard what a restore has brought back.

The snapshots of a table are a line, and expiry takes a file that one of them dropped to be gone for
all that follow. A restore breaks this: files that were dropped come back. So the snapshot that they
come from has a tag, which keeps them, until every snapshot from before the restore has expired;
from there on the rest is a line again. Other engines obey tags as well.
"""

from __future__ import annotations

import re

from keytide.errors import InvalidError
from keytide.format.snapshot import Snapshot
from keytide.table.state.metadata import TableMetadata

__all__ = ["guard_of", "is_guard", "is_over", "refuse_needed", "restorer", "settled_guard"]

_BEFORE = re.compile(r"restoring-\d+-([0-9a-f]+)")
_AFTER = re.compile(r"restored-\d+-by-(\d+)")


def guard_of(snapshot: Snapshot, mark: str) -> str:
    """The name of the tag while a restore is under way, whose author is `restorer(mark)`."""
    return f"restoring-{snapshot.id}-{mark}"


def settled_guard(snapshot: Snapshot, restored_by: int) -> str:
    """Its name once the restore is a snapshot."""
    return f"restored-{snapshot.id}-by-{restored_by}"


def restorer(mark: str) -> str:
    """The commit user of a restore."""
    return f"restore-{mark}"


def is_guard(name: str) -> bool:
    """Whether a tag has the name of a guard."""
    return bool(_BEFORE.fullmatch(name) or _AFTER.fullmatch(name))


def is_over(metadata: TableMetadata, name: str) -> bool:
    """Whether nothing has to be guarded any more; never of a restore that may be under way."""
    return _AFTER.fullmatch(name) is not None and not _is_needed(metadata, name)


def refuse_needed(metadata: TableMetadata, name: str) -> None:
    """Raise `InvalidError` for a tag that guards something still."""
    if is_guard(name) and _is_needed(metadata, name):
        raise InvalidError(
            f"table {metadata.name}: tag {name!r} guards files that a restore brought back, until "
            f"the snapshots from before it have expired; it goes by itself then. To be rid of it "
            f"now, expire them: expire_snapshots(retain_max=1, retain_min=1)"
        )


def _is_needed(metadata: TableMetadata, name: str) -> bool:
    """Whether there are snapshots from before the restore, and that is part of the table."""
    ids = metadata.snapshot_ids()
    settled, before = _AFTER.fullmatch(name), _BEFORE.fullmatch(name)
    if settled is not None:
        number = int(settled[1])
        return number in ids and ids[0] < number
    assert before is not None
    user = restorer(before[1])
    return any(metadata.snapshot(number).commit_user == user for number in ids[1:])
