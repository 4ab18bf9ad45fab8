"""Prints the documentation of table options."""

from __future__ import annotations

from keytide.definition.document import document

print(document(), end="")
