"""Mutants: the product with one rule less. The explorer must find each of them.

    python tests/schedules/mutants.py                     every mutant, in a process of its own
    python tests/schedules/mutants.py "no check of the base"

Prints the schedule that finds each, and how long it took. The exit code is 1 if one is not found.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

from schedule_search import Case  # noqa: E402  # after the path is set
from schedule_steps import Schedule  # noqa: E402  # after the path is set

SOURCE = Path(__file__).parents[2] / "src"
_SECONDS_MAX = 300.0
_NOT_FOUND = 3  # an exit code that no error of Python has

Patch = tuple[str, str, str]


@dataclass(frozen=True)
class Mutant:
    """Patches (a module, its text and another one), and the operations that meet the mutant."""

    patches: tuple[Patch, ...]
    kind: str
    operations: tuple[str, ...]
    schedules: tuple[str, ...] = ()
    """Lines to begin with. `{created}` is the number of steps before the first one creates."""


_COMMITTER = "commit/committer.py"
_CHANGE = "commit/change.py"
_AUTHORITY = "snapshot/authority.py"
_ROLLBACK = "maintenance/rollback.py"
_FILES = "commit/snapshot_files.py"
_EXPIRY = "maintenance/expiry.py"
_REFERENCES = "maintenance/references.py"
_NEVER_OWN: Patch = (
    _COMMITTER, "own = author.own(self._metadata, self._latest, kind, looked_at)", "own = None",
)  # fmt: skip
_LOST: Patch = (_AUTHORITY, "made = store.read(path) == data", "made = False")

MUTANTS: dict[str, Mutant] = {
    "a lost race is a success": Mutant(
        ((_AUTHORITY, "made = store.create(path, data)\n",
          "store.create(path, data)\n            made = True\n"),),
        "latest", ("write", "write later"),
    ),
    "an author does not know its own commit": Mutant(
        (_LOST, _NEVER_OWN,
         (_COMMITTER, "return self._metadata.snapshot(tried.id).uuid not in self._tried",
          "return True")),
        "sums", ("write", "write later"), ("A{created}?",),
    ),
    "files are deleted although the outcome is unknown": Mutant(
        ((_AUTHORITY, "made = store.read(path) == data", 'raise UnknownOutcomeError("lost")'),
         (_COMMITTER, "if not attempt.in_doubt:", "if True:")),
        "latest", ("write", "write later"), ("A{created}?",),
    ),
    "no check of the base": Mutant(
        ((_COMMITTER, "is_beside = self._is_beside_the_table(new)", "is_beside = False"),),
        "latest", ("write", "roll back"),
    ),
    "rows that others changed": Mutant(
        ((_CHANGE, "        if any(\n            ((entry.partition, entry.bucket) in buckets",
          "        if False and any(\n            ((entry.partition, entry.bucket) in buckets"),),
        "latest", ("update", "delete"),
    ),
    "commits of others are compactions": Mutant(
        ((_COMMITTER, "source is not None and has_same_rows(self._metadata, source, self._live):",
          "source is not None:"),),
        "latest", ("update", "delete"),
    ),
    "files that are gone": Mutant(
        ((_CHANGE, "            if entry.identity not in present:\n", "            if False:\n"),),
        "latest", ("compact", "overwrite"),
    ),
    "snapshots are cached by number": Mutant(
        (("snapshot/metadata.py",
          "return self._decoded(number, stored), _TIMES_STORED * len(stored)\n\n"
          "        return METADATA.load((lineage, uri), load)",
          "return self._decoded(number, stored), _TIMES_STORED * len(stored)\n\n"
          "        return METADATA.load(uri, load)"),),
        "latest", ("write", "roll back", "write later"),
        tuple(f"A{steps} B* C* A*" for steps in range(8, 24)),
    ),
    "a rollback brings its target back": Mutant(
        ((_ROLLBACK, "if self.is_in_branch or self.keeping_tag() is not None:", "if True:"),),
        "latest", ("roll back", "expire"),
    ),
    "a rollback does not look for its target": Mutant(
        ((_ROLLBACK, "if data is not None and not self.metadata.has_snapshot(self.target.id):",
          "if False:"),),
        "latest", ("roll back", "expire"),
    ),
    "an expiry does not look at the latest": Mutant(
        ((_EXPIRY, "if newest_id is not None and newest_id >= plan.oldest_kept.id:", "if True:"),),
        "latest", ("expire", "roll back"),
    ),
    "an expiry deletes all files of a snapshot": Mutant(
        ((_REFERENCES,
          "return [path for path in known if name_of(path) not in held]", "return [*known]"),),
        "latest", ("expire", "compact"),
    ),
    "a fast-forward takes what is there": Mutant(
        ((_ROLLBACK, "        if self.into.store.read(path) != data:\n", "        if False:\n"),),
        "latest", ("fast-forward", "write"),
    ),
    "an expiry overlooks tags": Mutant(
        ((_REFERENCES, "    yield from _tagged(store)\n    for other", "    for other"),),
        "latest", ("tag the first", "expire"),
    ),
    "an expiry overlooks branches": Mutant(
        ((_REFERENCES, "    for other in _other_branches(store):\n        # Tags",
          "    for other in ():\n        # Tags"),),
        "latest", ("compact", "expire"),
    ),
    "a tag does not look for its snapshot": Mutant(
        (("maintenance/tags.py",
          "    if not source.is_there(metadata):\n        metadata.delete_tag(name)",
          "    if False:\n        metadata.delete_tag(name)"),),
        "latest", ("tag the first", "expire"),
    ),
    "young files are orphans": Mutant(
        (("maintenance/orphans.py", "    before_ms = now_ms - AGE_MIN_MS\n",
          "    before_ms = now_ms + AGE_MIN_MS\n"),
         ("maintenance/orphans.py", "    if before_ms > now_ms:\n", "    if False:\n")),
        "latest", ("write", "remove orphans"),
    ),
    "a branch does not look for its snapshot": Mutant(
        (("maintenance/branches.py", "            if not begins.source.is_there(metadata):\n",
          "            if False:\n"),),
        "latest", ("branch of the first", "expire"),
    ),
    "compactions overlook each other": Mutant(
        ((_CHANGE, "lowest = 1 if change.kind is CommitKind.COMPACT else 0",
          "lowest = 99 if change.kind is CommitKind.COMPACT else 0"),
         (_CHANGE, "            if entry.identity not in present:\n", "            if False:\n")),
        "latest", ("compact", "compact"),
    ),
    "a snapshot is created before its files": Mutant(
        ((_COMMITTER, "        self._metadata.store.put_all(new.files)\n", ""),
         (_COMMITTER, "        if not self._create(new):\n            return None\n        hint",
          "        if not self._create(new):\n            return None\n"
          "        self._metadata.store.put_all(new.files)\n        hint")),
        "latest", ("write", "scan"), ("A{created}? B*",),
    ),
    "live files are not read again": Mutant(
        ((_COMMITTER,
          "self._live = load_live_files(self._metadata, self._latest, self._live)\n"
          "        return own",
          "return own"),),
        "latest", ("update", "delete"),
    ),
    "keys in other buckets": Mutant(
        ((_CHANGE, "if any(each.is_conflict() for each in moved):", "if False:"),),
        "dynamic buckets", ("write three", "write two"),
    ),
    "writes keep their numbers": Mutant(
        ((_CHANGE, "return Restamp(numbers) if numbers else Fits()", "return Fits()"),),
        "by commits", ("drop", "update all"),
    ),
    "compactions take new numbers": Mutant(
        ((_CHANGE, "    if change.kind is not CommitKind.APPEND or not change.renumbers:\n",
          "    if not change.renumbers:\n"),),
        "by commits", ("compact", "write late"),
    ),
    "manifests of an earlier attempt": Mutant(
        ((_FILES, "            base = self._base(change, latest, files)\n",
          "            base = self.__dict__.setdefault('_first', "
          "self._base(change, latest, files))\n"),),
        "latest", ("write", "write later"),
    ),
    "deletion vectors of others": Mutant(
        ((_CHANGE, "    if any(rows.is_outdated(dead_rows.get(bucket, NOTHING_DEAD))"
          " for bucket, rows in dead):\n", "    if False:\n"),),
        "without a key", ("update all", "delete the first"),
    ),
    "dead rows of files that are gone": Mutant(
        ((_CHANGE, "    if not marked <= present:\n", "    if False:\n"),),
        "without a key", ("delete the first", "compact"),
    ),
    "branches have orphans": Mutant(
        ((_REFERENCES, "    for branch in map(paths.parse_branch_name, "
          "main.list_names(paths.branches_dir())):\n", "    for branch in ():\n"),),
        "latest", ("write", "scan"),
    ),
    "two create a branch": Mutant(
        (("maintenance/branches.py",
          "    if not created(store.main, paths.unfinished_path(store.branch), mark):\n",
          "    created(store.main, paths.unfinished_path(store.branch), mark)\n    if False:\n"),),
        "latest", ("branch", "branch"),
    ),
    "a schema replaces another one": Mutant(
        (("store/interface.py", "        return store.create(path, data)\n    except DataError:\n"
          "        if store.exists(path)",
          "        store.put(path, data)\n        return True\n    except DataError:\n"
          "        if store.exists(path)"),),
        "latest", ("add a column", "add a column"),
    ),
}  # fmt: skip


def schedules(mutant: Mutant) -> Iterator[str]:
    """Lines to try, one after the other."""
    case = Case(mutant.kind, mutant.operations)
    steps = [step.operation for step in case.steps_alone("A")]
    created = steps.index("create") if "create" in steps else 0
    yield from (line.format(created=created) for line in mutant.schedules)
    for schedule in itertools.chain(case.schedules(1), case.faults("!?-"), case.schedules(2)):
        yield str(schedule)


def run_one(mutant: Mutant) -> str | None:
    """The first schedule whose result is wrong. Runs where the mutant is imported."""
    warnings.simplefilter("ignore")
    case, end = Case(mutant.kind, mutant.operations), time.monotonic() + _SECONDS_MAX
    for count, line in enumerate(schedules(mutant), 1):
        finding = case.check(Schedule.of(line))
        if finding is not None:
            return f"{case}: {line} ({count} tried): {finding.what.splitlines()[0][:120]}"
        if time.monotonic() > end:
            break
    return None


def mutated(mutant: Mutant, folder: Path) -> None:
    """A copy of the source with the patches. Each text must be there once."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for module, text, other in mutant.patches:
        path = folder / "keytide" / module
        source = path.read_text()
        assert source.count(text) == 1, f"{module} has {source.count(text)} times {text!r}"
        path.write_text(source.replace(text, other))


def found(name: str) -> str | None:
    """What finds a mutant, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        mutated(MUTANTS[name], Path(folder, "src"))
        environment = os.environ | {"PYTHONPATH": f"{folder}/src", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, __file__, "--here", name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, _NOT_FOUND):
        raise AssertionError(f"{name}: {done.stderr[-2000:]}")
    return done.stdout.strip() or None


def main() -> int:
    """Print what finds each mutant."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--here", action="store_true", help="in this process, already mutated")
    given = parser.parse_args()
    if given.here:
        (name,) = given.names
        line = run_one(MUTANTS[name])
        print(line or "")
        return 0 if line else _NOT_FOUND
    missed = 0
    for name in given.names or MUTANTS:
        began = time.monotonic()
        line = found(name)
        missed += line is None
        print(f"{name}: {line or 'NOT FOUND'}, {time.monotonic() - began:.0f} s", flush=True)
    return min(1, missed)


if __name__ == "__main__":
    sys.exit(main())
