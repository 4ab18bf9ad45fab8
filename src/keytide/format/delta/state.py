"""A Delta table as its log describes it: one version as a value, and actions to the next one.

Actions are kept as documents. Members that this release does not know are preserved, and unknown
actions are skipped, as readers of the log must do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import unquote

from keytide.base.lazily import cached_property
from keytide.errors import DataError

__all__ = [
    "APP_ID",
    "NOTHING",
    "VECTOR_TAG",
    "Action",
    "DeltaState",
    "decode_actions",
    "encode_actions",
    "told_snapshot",
    "vector_id",
]

Action: TypeAlias = "dict[str, Any]"

APP_ID = "keytide"
"""The application whose `txn` action says which snapshot a version shows."""
COMMIT_APP_ID = "keytide.commit"
"""The application whose `txn` action has the number of that snapshot's commit."""
VECTOR_TAG = "keytide.vector"
"""The tag of a file that identifies its deletion vector."""


@dataclass(frozen=True)
class DeltaState:
    """One version: the files by their path in the log, and removed files that may still be read.

    `snapshot_id` is the snapshot that it shows, and `commit` the number of its commit, which no
    other snapshot with this id has. None if Keytide did not record it.
    """

    version: int
    protocol: Action
    metadata: Action
    files: Mapping[str, Action] = field(repr=False)
    removed: tuple[Action, ...] = field(default=(), repr=False)
    snapshot_id: int | None = None
    commit: int | None = None

    @property
    def table_id(self) -> str:
        """Identifies the table, also among different tables at the same location."""
        return str(self.metadata.get("id"))

    @cached_property
    def by_name(self) -> Mapping[str, Action]:
        """The files by their own names."""
        return {unquote(path.rpartition("/")[2]): action for path, action in self.files.items()}

    def after(self, version: int, actions: Iterable[Action]) -> DeltaState:
        """The next version, after the actions of its commit. They come in any order."""
        every = list(actions)
        files, removed = dict(self.files), list(self.removed)
        for action in _of(every, "remove"):
            files.pop(action["path"], None)
            removed.append(action)
        for action in _of(every, "add"):
            files[action["path"]] = action
        told = {a.get("appId"): a.get("version") for a in _of(every, "txn")}
        return DeltaState(
            version,
            _last(every, "protocol", self.protocol),
            _last(every, "metaData", self.metadata),
            files,
            tuple(removed),
            told.get(APP_ID, self.snapshot_id),
            told.get(COMMIT_APP_ID, None if APP_ID in told else self.commit),
        )

    def without_removed(self, before_ms: int) -> DeltaState:
        """The same without files that were removed before a time."""
        left = (a for a in self.removed if a.get("deletionTimestamp", 0) >= before_ms)
        return replace(self, removed=tuple(left))

    def actions(self) -> list[Action]:
        """All actions that lead to it in one step, for a checkpoint."""
        told = {APP_ID: self.snapshot_id, COMMIT_APP_ID: self.commit}
        return [
            {"protocol": self.protocol},
            {"metaData": self.metadata},
            *(_transaction(app, number) for app, number in told.items() if number is not None),
            *({"add": action} for action in self.files.values()),
            *({"remove": action} for action in self.removed),
        ]


NOTHING = DeltaState(-1, {}, {}, {})
"""The state before the first version."""


def told_snapshot(snapshot_id: int, commit: int) -> list[Action]:
    """The actions that say which snapshot a version shows."""
    return [_transaction(APP_ID, snapshot_id), _transaction(COMMIT_APP_ID, commit)]


def _transaction(app: str, number: int) -> Action:
    return {"txn": {"appId": app, "version": number}}


def vector_id(add: Action) -> str | None:
    """Identifies the deletion vector of a file. None without one.

    A vector of another writer is unknown, so it equals none of Keytide's.
    """
    if add.get("deletionVector") is None:
        return None
    return str((add.get("tags") or {}).get(VECTOR_TAG, ""))


def encode_actions(actions: Sequence[Action]) -> bytes:
    """A commit of the log: one line for each action."""
    lines = (json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in actions)
    return "\n".join(lines).encode() + b"\n"


def decode_actions(data: bytes, path: str) -> list[Action]:
    """The actions of a commit. Raises `DataError`, which names `path`, if it is damaged."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a complete commit of a Delta log ({error})") from error
    if not all(isinstance(each, dict) for each in actions):
        raise DataError(f"{path}: not a commit of a Delta log: a line is not a JSON object")
    return actions


def _of(actions: Iterable[Action], kind: str) -> list[Action]:
    return [found for each in actions if isinstance(found := each.get(kind), dict)]


def _last(actions: Iterable[Action], kind: str, before: Action) -> Action:
    return ([before, *_of(actions, kind)])[-1]
