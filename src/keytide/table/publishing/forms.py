"""The forms in which tables are published. A new one is a module, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from keytide.format.snapshot import Snapshot
from keytide.table.definition.publication import ICEBERG, why_read_otherwise
from keytide.table.publishing.content import Content, content_of
from keytide.table.publishing.delta import DeltaForm
from keytide.table.publishing.form import Form
from keytide.table.publishing.iceberg import IcebergForm
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView

__all__ = ["FORMS", "AnyForm", "content_for", "form_for", "forms_for"]

AnyForm: TypeAlias = "Form[Any]"

FORMS: Mapping[str, AnyForm] = {form.name: form for form in (DeltaForm(), IcebergForm())}
"""The forms by what the option 'publish' calls them: to see what is published."""


def forms_for(view: TableView) -> list[AnyForm]:
    """The forms in which a table is to be published, by its options."""
    return [form_for(name, view) for name in view.options.publish]


def form_for(name: str, view: TableView) -> AnyForm:
    """The form of a name, as the options of a table have it."""
    if name == ICEBERG:
        return IcebergForm(view.options.publish_iceberg_format_version, view.schema.id)
    return FORMS[name]


def content_for(form: AnyForm, table: StoredTable, snapshot: Snapshot) -> Content | str:
    """What there is to publish of a snapshot in a form, or the reason why nothing is.

    Its columns are those of its time. Raises as `content_of`.
    """
    content = content_of(table, snapshot)
    if isinstance(content, str):
        return content
    view = content.view
    return (
        why_read_otherwise(view.schema, view.options, form.name) or form.why_not(content) or content
    )
