"""The formats in which tables are published. To add one, add a module and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from keytide.definition.publication import ICEBERG, why_read_otherwise
from keytide.format.snapshot import Snapshot
from keytide.publish.content import Content, content_of
from keytide.publish.delta import DeltaForm
from keytide.publish.form import Form
from keytide.publish.iceberg import IcebergForm
from keytide.snapshot.pinned import StoredTable
from keytide.snapshot.state import TableView

__all__ = ["FORMS", "AnyForm", "content_for", "form_for", "forms_for"]

AnyForm: TypeAlias = "Form[Any]"

FORMS: Mapping[str, AnyForm] = {form.name: form for form in (DeltaForm(), IcebergForm())}
"""All formats by their names in the option 'publish'. Used to find what is published."""


def forms_for(view: TableView) -> list[AnyForm]:
    """The formats in which a table is published, according to its options."""
    return [form_for(name, view) for name in view.options.publish]


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
