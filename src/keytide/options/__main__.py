"""Print the document of table options."""

from __future__ import annotations

from keytide.options.document import document

print(document(), end="")
