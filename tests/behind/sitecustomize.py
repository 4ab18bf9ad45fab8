"""What a Python does first that was begun by a test; see `behind_writers`."""

from contextlib import suppress

import behind_writers

with suppress(ImportError):  # one that has no Keytide compacts nothing
    behind_writers.begin()
