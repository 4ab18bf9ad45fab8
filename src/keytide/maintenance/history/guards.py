"""Tags that protect what a restore has brought back.

The snapshots of a table form a line, and expiry assumes that a file that one of them dropped is in
no later one. A restore breaks this rule, because dropped files come back. So the snapshot that they
come from has a tag, which protects them, until every snapshot from before the restore has expired.
After that, the rule holds for the rest again. Other engines respect tags too.
"""

from __future__ import annotations

import re

from keytide.errors import InvalidError
from keytide.format.snapshot import Snapshot
from keytide.snapshot.metadata import TableMetadata

__all__ = ["guard_of", "is_guard", "is_over", "refuse_needed", "restorer", "settled_guard"]

_BEFORE = re.compile(r"restoring-\d+-([0-9a-f]+)")
_AFTER = re.compile(r"restored-\d+-by-(\d+)")


def guard_of(snapshot: Snapshot, mark: str) -> str:
    """The name of the tag during a restore, whose author is `restorer(mark)`."""
    return f"restoring-{snapshot.id}-{mark}"


def settled_guard(snapshot: Snapshot, restored_by: int) -> str:
    """Its name when the restore is a snapshot."""
    return f"restored-{snapshot.id}-by-{restored_by}"


def restorer(mark: str) -> str:
    """The commit user of a restore."""
    return f"restore-{mark}"


def is_guard(name: str) -> bool:
    """Whether the name is that of a protecting tag."""
    return bool(_BEFORE.fullmatch(name) or _AFTER.fullmatch(name))


def is_over(metadata: TableMetadata, name: str) -> bool:
    """Whether the tag is no longer needed. Never true for a restore that may be running."""
    return _AFTER.fullmatch(name) is not None and not _is_needed(metadata, name)


def refuse_needed(metadata: TableMetadata, name: str) -> None:
    """Raise `InvalidError` for a tag that is still needed."""
    if is_guard(name) and _is_needed(metadata, name):
        raise InvalidError(
            f"table {metadata.name}: tag {name!r} protects restored files until the snapshots "
            "before the restore have expired, and is then deleted automatically. To delete it "
            "now, expire these snapshots: expire_snapshots(retain_max=1, retain_min=1)"
        )


def _is_needed(metadata: TableMetadata, name: str) -> bool:
    """Whether there are snapshots from before the restore, and the restore is part of the table."""
    ids = metadata.snapshot_ids()
    settled, before = _AFTER.fullmatch(name), _BEFORE.fullmatch(name)
    if settled is not None:
        number = int(settled[1])
        return number in ids and ids[0] < number
    assert before is not None
    user = restorer(before[1])
    return any(metadata.snapshot(number).commit_user == user for number in ids[1:])
