"""Publishes the latest snapshot in other formats, after commits and on request.

A publisher first reads the latest published version, and then reads the table. The publisher of
that version had read the table before. So a version never shows an older state than the version
before it, unless the table itself went back.

Snapshots expire. So after creating a version, its publisher checks whether the snapshot still
exists. Expiry deletes snapshots first, and reads afterwards what is published. One of the two sees
the other.

To add a format, add a module and a line here.

Publishers leave files when they die: those that no existing version references. The latest version
references nearly all long-lived files. The other versions are read only if candidates are left,
because somebody may be reading one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from keytide.base import record
from keytide.base.dataclass import dataclass
from keytide.base.record import rows_of
from keytide.commit.snapshot_files import wall_clock_ms
from keytide.definition.checks import DELTA, ICEBERG, why_read_otherwise
from keytide.errors import ConflictError, InvalidError, KeytideError
from keytide.format import paths
from keytide.format.delta_log import VECTOR_DIR
from keytide.format.iceberg_metadata import METADATA_DIR
from keytide.format.paths import branch_of, main_store
from keytide.format.snapshot import Snapshot
from keytide.options import keys
from keytide.publish import delta, iceberg
from keytide.publish.delta import DeltaForm
from keytide.publish.form import Content, Form, Version, content_of, forget, recall, remember, shows
from keytide.publish.iceberg import IcebergForm
from keytide.snapshot.live_files import is_gone
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.store import Store

# -- formats ---------------------------------------------------------------------------------------


AnyForm: TypeAlias = "Form[Any]"

FORMS: Mapping[str, AnyForm] = {form.name: form for form in (DeltaForm(), IcebergForm())}
"""All formats by their names in the option 'publish'. Used to find what is published."""


def form_for(name: str, view: TableView) -> AnyForm:
    """The format with that name, configured by the options of a table."""
    if name == ICEBERG:
        return IcebergForm(view.options.publish_iceberg_format_version, view.schema.id)
    return FORMS[name]


def content_for(form: AnyForm, table: StoredTable, snapshot: Snapshot) -> Content | str:
    """What there is to publish of a snapshot in a format, or the reason why nothing can be
    published.

    Its columns are those of its time. Raises like `content_of`.
    """
    content = content_of(table, snapshot)
    if isinstance(content, str):
        return content
    view = content.view
    return (
        why_read_otherwise(view.schema, view.options, form.name) or form.why_not(content) or content
    )


# -- the state of publications ---------------------------------------------------------------------


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
        return record.table(rows.column_names, [[*row.values()] for row in rows.to_pylist()])


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
    reason = None
    if not shows(version, snapshot):
        content = NO_SNAPSHOT if snapshot is None else content_for(form, table, snapshot)
        reason = content if isinstance(content, str) else "it is not published yet"
    return Publication(form.name, number, shown, newest, reason)


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
    settings = [schema.options.get(keys.PUBLISH, "") for schema in view.schemas.values()]
    named = {name.strip().lower() for text in settings for name in text.split(",")}
    return (name for name in FORMS if name in named)


# -- files of dead publishers ----------------------------------------------------------------------


_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True)
class _LeftoverRules:
    """What publishers of a format write before a version, and which of it versions reference."""

    paths: re.Pattern[str]
    named_by: Callable[[Any], Iterable[str]]
    named_by_any: Callable[[Store], Iterable[str]]


_LEAVINGS: Mapping[str, _LeftoverRules] = {
    DELTA: _LeftoverRules(
        re.compile(rf"{VECTOR_DIR}/deletion_vector_{_UUID}\.bin"),
        delta.vector_files,
        delta.vector_files_of_all,
    ),
    ICEBERG: _LeftoverRules(
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
            own = _except_named(own, leavings.named_by(version))
        if own:
            own = _except_named(own, leavings.named_by_any(store))
        left += own
    return left


def _except_named(found: Iterable[str], names: Iterable[str]) -> set[str]:
    known = frozenset(names)
    return {path for path in found if path.rpartition("/")[2] not in known}


# -- publishing ------------------------------------------------------------------------------------


_TRIES = 10


def publish(table: StoredTable) -> Publications:
    """Publish the latest snapshot for readers of other formats, according to the option 'publish'.

    Each commit does this automatically. Call it after you set the option, or when a commit warned
    that publishing failed. With 'delta' the table can be opened as a Delta table, and with
    'iceberg' as an Iceberg table, at the same location and over the same data files. A snapshot
    whose rows must be merged is not published: the last published one stays, and `reason` says why
    the latest one is not published. The columns are those of the snapshot.

    Raises `InvalidError` if the option is not set, and for a branch. Raises `ConflictError` if too
    many races against other publishers were lost, and `DataError` if the store fails or the
    previous publication is damaged. The publication does not change then.
    """
    view = table.view(table.schema)
    if branch_of(table.store) != paths.MAIN_BRANCH:
        raise InvalidError(
            f"table {table.name} is a branch, but only the main branch can be published; "
            "fast-forward the table to the branch"
        )
    if not view.options.publish:
        raise InvalidError(
            f"table {table.name} does not set '{keys.PUBLISH}'; set it to "
            f"{' or '.join(map(repr, FORMS))}"
        )
    forms = (form_for(name, view) for name in view.options.publish)
    return Publications(_Publisher(table.live, form).run_and_announce() for form in forms)


def publish_after(table: StoredTable, view: TableView, newest_id: int) -> None:
    """Publish what the table's options say, after a commit. `newest_id` is a recent snapshot.

    Does not read the table if this process made both the commit and the publication. Raises like
    `publish`.
    """
    if not view.options.publish or branch_of(table.store) != paths.MAIN_BRANCH:
        return
    # If one format fails, the others are published nevertheless.
    attempts = [_Publisher(table.live, form_for(name, view)) for name in view.options.publish]
    outcomes = table.store.together([partial(each.failure, newest_id) for each in attempts])
    for error in outcomes:
        if error is not None:
            raise error


@dataclass(frozen=True)
class _Publisher:
    table: StoredTable
    form: AnyForm

    def failure(self, made_id: int) -> Exception | None:
        """The error of a run."""
        try:
            self.run(made_id)
        except Exception as error:
            return error
        return None

    def run_and_announce(self) -> Publication:
        """Publish the latest snapshot, and tell readers of the latest version in any case.

        A publisher may have died between the two.
        """
        done = self.run(None)
        known = recall(self.table.store, self.form.name)
        if known is not None:
            self.form.announce(self.table.store, known)
        return done

    def run(self, made_id: int | None) -> Publication:
        """Publish the latest snapshot.

        This is `made_id` if this process created it after the known published version.
        """
        known = recall(self.table.store, self.form.name)
        if made_id is not None and known is not None and (known.snapshot_id or made_id) < made_id:
            step = self._step(known, self.table.remembered(made_id))
        else:
            step = self._look(known)
        for _ in range(_TRIES):
            if isinstance(step, Publication):
                return step
            step = self._look(step.version)
        raise ConflictError(
            f"table {self.table.name}: publishing as {self.form.name} failed after {_TRIES} "
            "attempts, because others published first; the next commit or Table.publish "
            "publishes it"
        )

    def _look(self, known: Version | None) -> Publication | _Retry:
        """One attempt with the current state: first read the published version, then the table."""
        newest = self.form.newest(self.table.store, known)
        return self._step(newest, self.table.metadata.latest_snapshot())

    def _step(self, known: Version | None, snapshot: Snapshot | None) -> Publication | _Retry:
        if known is not None:
            remember(self.table.store, self.form.name, known)
        if snapshot is None:
            return self._publication(known, None, NO_SNAPSHOT)
        try:
            content = content_for(self.form, self.table, snapshot)
            if isinstance(content, str):
                return self._publication(known, snapshot.id, content)

            store, number = self.table.store, content.snapshot.id
            form = self.form
            if known is not None and form.is_outdated(known):
                form = form_for(form.name, self.table.view(self.table.schema))
            draft = form.draft(known, content, wall_clock_ms())
            if draft is None:
                return self._publication(known, number, None)
            made = draft.create(store)
            if made is None:
                return _Retry(known)
            announced = store.begin(partial(self.form.announce, store, made))
            checks: list[Callable[[], bool]] = [partial(self.table.metadata.has, content.snapshot)]
            if known is not None:
                checks.append(partial(form.is_there, store, known))
            is_there, *goes_on = store.together(checks)
            announced.result()
            if not all(goes_on):
                # Somebody removed the publication, to start again.
                self.form.take_back(store, made)
                forget(store, self.form.name)
                return _Retry(None)
            remember(self.table.store, self.form.name, made)
            if not is_there:
                return _Retry(made)
            self.form.tidy(store, made, content, wall_clock_ms())
            return self._publication(made, number, None)
        except KeytideError as error:
            if not is_gone(error):
                raise
            return _Retry(known)  # expired or rolled back in the meantime

    def _publication(
        self, known: Version | None, newest: int | None, reason: str | None
    ) -> Publication:
        return Publication(
            self.form.name,
            None if known is None else known.version,
            None if known is None else known.snapshot_id,
            newest,
            reason,
        )


@dataclass(frozen=True)
class _Retry:
    """Another attempt is needed, with this known published version."""

    version: Version | None
