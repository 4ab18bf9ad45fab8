"""One case of a fuzzer: its random numbers, its scratch folder, and what it found.

A case is told by its part, the seed of the run and its number, and does the same whenever it runs.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import keytide as kt
from far import FarFolder

__all__ = ["Case", "Finding", "Refused", "made"]

_T = TypeVar("_T")
_TEXT_MAX = 1_500
_CACHE_BYTES = 1 << 20
"""The least there can be, so that files leave it."""


@dataclass(frozen=True)
class Finding:
    """Something that may not happen: an 'error', 'rows' that differ, a 'hang' or a 'crash'.

    Findings of one kind and place are one finding.
    """

    kind: str
    part: str
    case: int
    place: str
    told: str


@dataclass(frozen=True)
class Refused:
    """What a call gives that was refused with an error of Keytide."""

    error: kt.KeytideError


@dataclass
class Case:
    """What a part of the fuzzer is given for one case."""

    part: str
    number: int
    chance: random.Random
    folder: Path
    is_far: bool = False
    """Whether lakes pass for object stores, with a small cache in the folder."""
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def lake(self, name: str = "lake") -> kt.Lake:
        """The lake of that name, which no other case has."""
        if not self.is_far:
            return kt.connect(self.folder / name)
        store = FarFolder(str(self.folder / name))
        cache = self.folder / "cache"
        return kt.connect("", store=store, cache=cache, cache_bytes=_CACHE_BYTES)

    def attempt(self, told: str, act: Callable[[], _T], *, harmed: bool = False) -> _T | Refused:
        """What `act` gives. Any error but Keytide's is a finding.

        So is `DataError` unless files were `harmed`, or the disk takes no such name: nothing is
        wrong with what is stored.
        """
        try:
            found = act()
        except kt.KeytideError as error:
            self.count("refused")
            is_harm = isinstance(error, kt.DataError) and not _is_overlong(error)
            if not _told(error).strip() or (is_harm and not harmed):
                self.note("error", _place(error), f"{told}: {_named(error)}")
            return Refused(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of a Rust library is no Exception
            self.note("error", _place(error), f"{told}: {_named(error)}")
            return Refused(kt.InvalidError(_named(error)))
        self.count("done")
        return found

    def note(self, kind: str, place: str, told: str) -> None:
        """Keep a finding."""
        self.findings.append(Finding(kind, self.part, self.number, place, told[:_TEXT_MAX]))

    def count(self, what: str) -> None:
        """Count something for the summary."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def chosen(self, *makers: Callable[[], _T]) -> _T:
        """What one of some functions makes."""
        return self.chance.choice(makers)()

    def often(self, part: float) -> bool:
        """True in this part of all cases."""
        return self.chance.random() < part


@contextmanager
def made(part: str, seed: int, number: int, *, is_far: bool = False) -> Iterator[Case]:
    """A case with an empty folder, which goes away with it.

    Relative paths are meant from another empty folder, so that they name nothing.
    """
    chance, before = random.Random(f"{seed} {part} {number}"), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own, nothing = Path(folder, "own"), Path(folder, "nothing")
        own.mkdir()
        nothing.mkdir()
        os.chdir(nothing)
        try:
            yield Case(part, number, chance, own, is_far)
        finally:
            os.chdir(before)


def _named(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}: {_told(error)}"


def _is_overlong(error: BaseException | None) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return True
    return error is not None and _is_overlong(error.__cause__)


def _told(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception as second:  # the text of an error may fail on what it quotes
        return f"(its text fails with {type(second).__qualname__})" * (not _is_ours(error))


def _is_ours(error: BaseException) -> bool:
    return isinstance(error, kt.KeytideError)


def _place(error: BaseException) -> str:
    """The class of an error, and the innermost function of Keytide that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/keytide/" in frame.filename]
    if not ours:
        return type(error).__qualname__
    file = ours[-1].filename.rsplit("/keytide/", 1)[1]
    return f"{type(error).__qualname__} in {file} {ours[-1].name}"


def brief(value: Any) -> str:
    """A short text of any value, whatever its methods do."""
    try:
        text = repr(value)
    except BaseException as error:
        return f"<{type(value).__qualname__} whose repr raises {type(error).__qualname__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 160 else f"{text[:120]}...{text[-30:]}"
