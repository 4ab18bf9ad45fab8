"""The forms in which tables are published. A new one is a module, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from keytide.table.publishing.delta import DeltaForm
from keytide.table.publishing.form import Form
from keytide.table.publishing.iceberg import IcebergForm

__all__ = ["FORMS", "AnyForm"]

AnyForm: TypeAlias = "Form[Any]"

FORMS: Mapping[str, AnyForm] = {form.name: form for form in (DeltaForm(), IcebergForm())}
"""The forms by what the option 'publish' calls them."""
