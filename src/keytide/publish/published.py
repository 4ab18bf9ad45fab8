"""What is published of a table: the snapshot, how far it is behind, and its files.

Files that publishers left when they died: those that no existing version references.

The latest version references nearly all long-lived files. The other versions are read only if
candidates are left, because somebody may be reading one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keytide.base import html
from keytide.base.record import rows_of
from keytide.definition.publication import DELTA, ICEBERG
from keytide.format import paths
from keytide.format.branch import branch_of, main_store
from keytide.format.delta.log import VECTOR_DIR
from keytide.format.iceberg.metadata import METADATA_DIR
from keytide.format.snapshot import Snapshot
from keytide.options import keys
from keytide.publish import delta, iceberg
from keytide.publish.form import Version, shows
from keytide.publish.forms import FORMS, AnyForm, content_for
from keytide.publish.seen import recall, remember
from keytide.snapshot.pinned import StoredTable
from keytide.snapshot.state import TableView
from keytide.store import Store

# -- what is published of a table ------------------------------------------------------------------


NO_SNAPSHOT = "the table has no snapshots"
"""Why nothing is published of a new table."""


@dataclass(frozen=True)
class Publication:
    """What is published of a table in one format.

    `version` is the version number of the format and `snapshot_id` the snapshot that it shows. Both
    are None if nothing is published. `newest_snapshot_id` is the latest snapshot of the table.
    `reason` says why that is not shown, None if it is.
    """

    form: str
    version: int | None
    snapshot_id: int | None
    newest_snapshot_id: int | None
    reason: str | None

    is_stopped: bool = False
    """Whether the options no longer name the format, so that it is not updated."""

    @property
    def is_current(self) -> bool:
        """Whether the latest snapshot is shown."""
        return self.reason is None


class Publications(list[Publication]):
    """What is published of a table. A notebook shows it as a table."""

    @classmethod
    def columns(cls) -> pa.Schema:
        """The columns of the rows."""
        return rows_of(Publication, []).schema

    def to_arrow(self) -> pa.Table:
        """One row for each format."""
        return rows_of(Publication, self)

    def _repr_html_(self) -> str:
        rows = self.to_arrow()
        return html.table(rows.column_names, [[*row.values()] for row in rows.to_pylist()])


def publications_of(table: StoredTable) -> Publications:
    """What is published of a table, in each format that its options name or have named.

    Raises `DataError` if it is damaged.
    """
    view = table.view(table.schema)
    if branch_of(table.store) != paths.MAIN_BRANCH:
        return Publications()
    return Publications(_publication(table, view, FORMS[name]) for name in _forms_ever(view))


def _publication(table: StoredTable, view: TableView, form: AnyForm) -> Publication:
    version = _newest(table.store, form)
    snapshot = table.metadata.latest_snapshot()
    newest = None if snapshot is None else snapshot.id
    shown = None if version is None else version.snapshot_id
    number = None if version is None else version.version
    if form.name not in view.options.publish:
        stopped = f"'{keys.PUBLISH}' no longer names {form.name}"
        return Publication(form.name, number, shown, newest, stopped, is_stopped=True)
    reason = None if shows(version, snapshot) else _why_not(table, form, snapshot)
    return Publication(form.name, number, shown, newest, reason)


def _why_not(table: StoredTable, form: AnyForm, snapshot: Snapshot | None) -> str:
    """Why a snapshot is not published."""
    if snapshot is None:
        return NO_SNAPSHOT
    content = content_for(form, table, snapshot)
    return content if isinstance(content, str) else "it is not published yet"


def names_of_published(store: Store, view: TableView) -> frozenset[str]:
    """The names of the data files that readers of the publications read.

    `store` is that of a table or of a branch whose files the table may have taken over. Raises
    `DataError` if this is unknown.
    """
    main = main_store(store)
    forms = FORMS.values() if store is not main else [FORMS[n] for n in _forms_ever(view)]
    names: frozenset[str] = frozenset()
    for form in forms:
        version = _newest(main, form)
        if version is not None:
            names |= version.by_name.keys()
    return names


def newest_versions(store: Store, view: TableView) -> list[tuple[AnyForm, Version | None]]:
    """The latest version of each format that the options name or have named. None if there is none.

    Raises `DataError` if it is damaged.
    """
    return [(form, _newest(store, form)) for form in map(FORMS.__getitem__, _forms_ever(view))]


def _newest(store: Store, form: AnyForm) -> Version | None:
    version: Version | None = form.newest(store, recall(store, form.name))
    if version is not None:
        remember(store, form.name, version)
    return version


def _forms_ever(view: TableView) -> Iterator[str]:
    """The formats that options name, or have named before: their publications still exist."""
    told = [schema.options.get(keys.PUBLISH, "") for schema in view.schemas.values()]
    named = {name.strip().lower() for text in told for name in text.split(",")}
    return (name for name in FORMS if name in named)


# -- files that publishers left when they died -----------------------------------------------------


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
        delta.vector_files,
        delta.vector_files_of_all,
    ),
    ICEBERG: _Leavings(
        re.compile(
            rf"{METADATA_DIR}/(snap-[0-9]+-{_UUID}\.avro|{_UUID}-m[01]\.avro"
            rf"|deletes-[0-9a-f]{{24}}-{_UUID}\.(parquet|puffin))"
        ),
        iceberg.files_of,
        iceberg.files_of_all,
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
