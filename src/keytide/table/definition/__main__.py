"""Prints the documentation of table options."""

from __future__ import annotations

from keytide.table.definition.document import document

print(document(), end="")
