"""Publishes the latest snapshot, after commits and on request.

A publisher first reads the latest published version, and then reads the table. The publisher of
that version had read the table before. So a version never shows an older state than the version
before it, unless the table itself went back.

Snapshots expire. So after creating a version, its publisher checks whether the snapshot still
exists. Expiry deletes snapshots first, and reads afterwards what is published. One of the two sees
the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from keytide.commit.snapshot_files import wall_clock_ms
from keytide.errors import ConflictError, InvalidError, KeytideError, NotFoundError
from keytide.format import paths
from keytide.format.branch import branch_of
from keytide.format.snapshot import Snapshot
from keytide.options import keys
from keytide.publish.content import Content
from keytide.publish.form import Version
from keytide.publish.forms import FORMS, AnyForm, content_for, form_for, forms_for
from keytide.publish.published import NO_SNAPSHOT, Publication, Publications
from keytide.publish.seen import forget, recall, remember
from keytide.snapshot.pinned import StoredTable
from keytide.snapshot.retries import is_gone
from keytide.snapshot.state import TableView

__all__ = ["publish", "publish_after"]

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
    return Publications(_Publishing(table.live, form).run_and_tell() for form in forms_for(view))


def publish_after(table: StoredTable, view: TableView, newest_id: int) -> None:
    """Publish what the table's options say, after a commit. `newest_id` is a recent snapshot.

    Does not read the table if this process made both the commit and the publication. Raises like
    `publish`.
    """
    if not view.options.publish or branch_of(table.store) != paths.MAIN_BRANCH:
        return
    # If one format fails, the others are published nevertheless.
    attempts = [_Publishing(table.live, form) for form in forms_for(view)]
    outcomes = table.store.together([partial(each.failure, newest_id) for each in attempts])
    for error in outcomes:
        if error is not None:
            raise error


@dataclass(frozen=True)
class _Publishing:
    table: StoredTable
    form: AnyForm

    def failure(self, made_id: int) -> Exception | None:
        """The error of a run."""
        try:
            self.run(made_id)
        except Exception as error:
            return error
        return None

    def run_and_tell(self) -> Publication:
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
            step = self._look(step.known)
        raise ConflictError(
            f"table {self.table.name}: publishing as {self.form.name} failed after {_TRIES} "
            "attempts, because others published first; the next commit or Table.publish "
            "publishes it"
        )

    def _look(self, known: Version | None) -> Publication | _Again:
        """One attempt with the current state: first read the published version, then the table."""
        newest = self.form.newest(self.table.store, known)
        return self._step(newest, self.table.metadata.latest_snapshot())

    def _step(self, known: Version | None, snapshot: Snapshot | None) -> Publication | _Again:
        if known is not None:
            remember(self.table.store, self.form.name, known)
        if snapshot is None:
            return self._told(known, None, NO_SNAPSHOT)
        try:
            content = content_for(self.form, self.table, snapshot)
            if isinstance(content, str):
                return self._told(known, snapshot.id, content)
            return self._make(known, content)
        except KeytideError as error:
            if not is_gone(error):
                raise
            return _Again(known)  # expired or rolled back in the meantime

    def _make(self, known: Version | None, content: Content) -> Publication | _Again:
        store, number = self.table.store, content.snapshot.id
        draft = self._form_after(known).draft(known, content, wall_clock_ms())
        if draft is None:
            return self._told(known, number, None)
        made = draft.create(store)
        if made is None:
            return _Again(known)
        announced = store.begin(partial(self.form.announce, store, made))
        is_there, goes_on = store.together(
            [partial(self._still_has, content.snapshot), partial(self._is_there, known)]
        )
        announced.result()
        if not goes_on:
            # Somebody removed the publication, to start again.
            self.form.take_back(store, made)
            forget(store, self.form.name)
            return _Again(None)
        remember(self.table.store, self.form.name, made)
        if not is_there:
            return _Again(made)
        self.form.tidy(store, made, content, wall_clock_ms())
        return self._told(made, number, None)

    def _still_has(self, snapshot: Snapshot) -> bool:
        """Whether the table has a snapshot, and not another one with its id."""
        try:
            return self.table.metadata.snapshot(snapshot.id) == snapshot
        except NotFoundError:
            return False

    def _form_after(self, known: Version | None) -> AnyForm:
        """The format with options that are not older than those of a version."""
        if known is None or not self.form.is_outdated(known):
            return self.form
        return form_for(self.form.name, self.table.view(self.table.schema))

    def _is_there(self, known: Version | None) -> bool:
        return known is None or self.form.is_there(self.table.store, known)

    def _told(self, known: Version | None, newest: int | None, reason: str | None) -> Publication:
        return Publication(
            self.form.name,
            None if known is None else known.version,
            None if known is None else known.snapshot_id,
            newest,
            reason,
        )


@dataclass(frozen=True)
class _Again:
    """Another attempt is needed, with this known published version."""

    known: Version | None
