"""Files that publishers left when they died: those that no existing version references.

The latest version references nearly all long-lived files. The other versions are read only if
candidates are left, because somebody may be reading one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keytide.definition.publication import DELTA, ICEBERG
from keytide.format import paths
from keytide.format.branch import branch_of
from keytide.format.delta.vector import VECTOR_DIR
from keytide.format.iceberg.metadata import METADATA_DIR
from keytide.publish import delta_log, iceberg_metadata
from keytide.publish.published import newest_versions
from keytide.snapshot.view import TableView
from keytide.store import Store

__all__ = ["left_over", "may_be_left_over"]

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True)
class _Leavings:
    """What publishers of a format write before a version, and which of it versions reference."""

    paths: re.Pattern[str]
    named_by: Callable[[Any], Iterable[str]]
    named_by_any: Callable[[Store], Iterable[str]]


_LEAVINGS: Mapping[str, _Leavings] = {
    DELTA: _Leavings(
        re.compile(rf"{VECTOR_DIR}/deletion_vector_{_UUID}\.bin"),
        delta_log.vector_files,
        delta_log.vector_files_of_all,
    ),
    ICEBERG: _Leavings(
        re.compile(
            rf"{METADATA_DIR}/(snap-[0-9]+-{_UUID}\.avro|{_UUID}-m[01]\.avro"
            rf"|deletes-[0-9a-f]{{24}}-{_UUID}\.(parquet|puffin))"
        ),
        iceberg_metadata.files_of,
        iceberg_metadata.files_of_all,
    ),
}


def may_be_left_over(path: str) -> bool:
    """Whether a file of the table must be referenced by a version."""
    return any(each.paths.fullmatch(path) for each in _LEAVINGS.values())


def left_over(store: Store, view: TableView, found: Collection[str]) -> list[str]:
    """Those files that no version references, in all formats that were ever published.

    `found` were listed before. Raises `DataError` if a version cannot be read.
    """
    if branch_of(store) != paths.MAIN_BRANCH or not found:
        return []
    left: list[str] = []
    for form, version in newest_versions(store, view):
        leavings = _LEAVINGS[form.name]
        own = {path for path in found if leavings.paths.fullmatch(path)}
        if own and version is not None:
            own = _but(own, leavings.named_by(version))
        if own:
            own = _but(own, leavings.named_by_any(store))
        left += own
    return left


def _but(found: Iterable[str], names: Iterable[str]) -> set[str]:
    known = frozenset(names)
    return {path for path in found if path.rpartition("/")[2] not in known}
