"""Warnings that point at the line that called Keytide, however deep the call stack."""

from __future__ import annotations

import itertools
import sys
import traceback
import warnings

from keytide.errors import KeytideWarning

__all__ = ["warn_caller"]


def warn_caller(message: str) -> None:
    """Issue a `KeytideWarning`, about something that the user can fix, for the calling line."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    names = (str(frame.f_globals.get("__name__")) for frame in frames)
    ours = sum(1 for _ in itertools.takewhile(_is_ours, names))
    warnings.warn(message, KeytideWarning, stacklevel=ours + 1)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("keytide", "contextlib")
