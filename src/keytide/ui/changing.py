"""Pages that change a table: they first show what would be done, and do it after a confirmation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from keytide.base.text import counted
from keytide.errors import InvalidError
from keytide.lake.table import Table
from keytide.show.text import size_text
from keytide.ui.requests import Asked, Form, Site, whole_number
from keytide.ui.table_pages import Look, redirected, table_of

__all__ = ["Proposal", "change_routes"]

Change = Callable[[Site, Asked, Form], Response]


@dataclass(frozen=True)
class Proposal:
    """What would be done, in sentences, and the form fields that confirm it.

    `newest` is the latest snapshot at the time of the proposal, 0 if there is none.
    """

    title: str
    button: str
    sentences: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    newest: int
    is_worth_it: bool = True


def change_routes() -> dict[str, tuple[Look, Change]]:
    """The pages by address: what each shows, and what it does with a form."""
    return {
        "/table/{table}/actions": (_actions, _propose),
        "/table/{table}/actions/confirmed": (_actions, _carry_out),
    }


def _actions(site: Site, asked: Asked) -> Response:
    table = table_of(site, asked)
    return site.page("actions.html", table=table.name, view="actions", to=asked.text("to") or "")


def _propose(site: Site, asked: Asked, form: Form) -> Response:
    """Show what would be done, without doing it."""
    table = table_of(site, asked)
    return _confirm(site, table, _proposal(table, form))


def _confirm(site: Site, table: Table, proposal: Proposal, changed: str = "") -> Response:
    return site.page(
        "confirm.html", 409 if changed else 200, table=table.name, view="actions",
        proposal=proposal, changed=changed,
    )  # fmt: skip


def _carry_out(site: Site, asked: Asked, form: Form) -> Response:
    """Do it, if the table has not changed since the proposal was shown."""
    table = table_of(site, asked)
    proposal = _proposal(table, form)
    if form.get("newest") != str(proposal.newest):
        told = f"Snapshot {proposal.newest} was committed since. This is what would be done now."
        return _confirm(site, table, proposal, told)
    _ACTIONS[_what(form)].carry_out(table, form)
    return redirected(table.name, "timeline")


def _proposal(table: Table, form: Form) -> Proposal:
    newest = table.metadata.latest_snapshot_id() or 0
    return _ACTIONS[_what(form)].propose(table, form, newest)


def _what(form: Form) -> str:
    what = form.get("what", "")
    if what not in _ACTIONS:
        raise InvalidError(f"what is {what!r}; expected one of {', '.join(_ACTIONS)}")
    return what


@dataclass(frozen=True)
class _Action:
    """An action: how it is proposed, and how it is done."""

    propose: Callable[[Table, Form, int], Proposal]
    carry_out: Callable[[Table, Form], object]


def _is_full(form: Form) -> bool:
    return form.get("full") == "yes"


def _propose_compaction(table: Table, form: Form, newest: int) -> Proposal:
    full = _is_full(form)
    planned = table.compact(full=full, dry_run=True)
    told = (
        f"{counted(planned.files_before, 'file')} with {size_text(planned.bytes_before)} in "
        f"{counted(planned.buckets, 'bucket')} would be merged into fewer and larger files with "
        f"the same rows, in one commit."
        if planned.buckets
        else "There is nothing to compact: no bucket would change."
    )
    return Proposal(
        f"Compact {table.name}{' in full' if full else ''}", "Compact", (told,),
        (("what", "compact"), ("full", "yes" if full else "")), newest, planned.buckets > 0,
    )  # fmt: skip


def _propose_tag(table: Table, form: Form, newest: int) -> Proposal:
    name, snapshot = form.get("name", ""), _snapshot(form)
    told = f"Snapshot {newest if snapshot is None else snapshot} would be named {name!r}."
    kept = "A tag keeps its snapshot readable, with its files, until the tag is deleted."
    fields = (("what", "tag"), ("name", name), ("snapshot", form.get("snapshot", "")))
    return Proposal(f"Tag {table.name}", "Create the tag", (told, kept), fields, newest)


def _create_tag(table: Table, form: Form) -> object:
    return table.create_tag(form.get("name", ""), _snapshot(form))


def _snapshot(form: Form) -> int | None:
    given = form.get("snapshot", "")
    return whole_number(given, "snapshot") if given else None


def _to(form: Form) -> int | str:
    given = form.get("to", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else given


def _propose_rollback(table: Table, form: Form, newest: int) -> Proposal:
    planned = table.rollback_to(_to(form), dry_run=True)
    told = [
        f"The table would be reset to snapshot {planned.current_snapshot_id}.",
        f"{counted(planned.snapshots, 'later snapshot')} would be deleted, up to "
        f"{planned.previous_snapshot_id}. This cannot be undone.",
    ]
    if planned.tags:
        told.append(f"These tags would be deleted with them: {', '.join(planned.tags)}.")
    if planned.consumers:
        told.append(f"These consumers have already read them: {', '.join(planned.consumers)}.")
    return Proposal(
        f"Roll {table.name} back", "Roll back", tuple(told),
        (("what", "rollback"), ("to", form.get("to", ""))), newest, planned.snapshots > 0,
    )  # fmt: skip


def _roll_back(table: Table, form: Form) -> object:
    return table.rollback_to(_to(form))


_ACTIONS = {
    "compact": _Action(_propose_compaction, lambda table, form: table.compact(full=_is_full(form))),
    "tag": _Action(_propose_tag, _create_tag),
    "rollback": _Action(_propose_rollback, _roll_back),
}
