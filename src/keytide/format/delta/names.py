"""Creates and parses the file names of a Delta log."""

from __future__ import annotations

import re

__all__ = [
    "LAST_CHECKPOINT",
    "LOG_DIR",
    "checkpoint_path",
    "commit_path",
    "parse_checkpoint_name",
    "parse_commit_name",
    "parse_version",
]

LOG_DIR = "_delta_log"
LAST_CHECKPOINT = f"{LOG_DIR}/_last_checkpoint"
"""A hint that says where readers begin."""

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_VERSION = re.compile(r"([0-9]{20})\..+")


def commit_path(version: int) -> str:
    """The file of a version. Creating it creates the version."""
    return f"{LOG_DIR}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """The checkpoint file with all versions up to this one."""
    return f"{LOG_DIR}/{version:020d}.checkpoint.parquet"


def parse_commit_name(name: str) -> int | None:
    """The version in the name of a commit file."""
    return _number(_COMMIT, name)


def parse_checkpoint_name(name: str) -> int | None:
    """The version in the name of a checkpoint file."""
    return _number(_CHECKPOINT, name)


def parse_version(name: str) -> int | None:
    """The version of a file in the log."""
    return _number(_VERSION, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return None if found is None else int(found[1])
