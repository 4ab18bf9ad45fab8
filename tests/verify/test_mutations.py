"""Whatever one member of a stored document says: Keytide's errors alone, and verify names it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

import keytide as kt
import mutations
from keytide.store import Store
from new_tables import table_in

KEY = {"p": "a", "k": 2}
READS: dict[str, Callable[[kt.Table], Any]] = {
    "scan": lambda t: sorted(map(repr, t.scan().to_pylist())),
    "old snapshots": lambda t: [t.scan(snapshot_id=s.id).count() for s in t.snapshots()],
    "tag": lambda t: t.scan(tag="first").count(),
    "branch": lambda t: t.branch("b").scan().count(),
}
# Each begins with a table as it was left by the one before it.
CALLS: dict[str, Callable[[kt.Table], Any]] = {
    **READS,
    "where": lambda t: t.scan(where="v = '9' AND k > 0").count(),
    "get": lambda t: t.get(KEY),
    "changes": lambda t: t.changes(0).to_arrow(),
    "why": lambda t: t.why(KEY),
    "doctor": lambda t: t.doctor(),
    "orphans": lambda t: t.remove_orphan_files(),
    "follow": lambda t: next(t.follow(consumer="slow", timeout_seconds=0), None),
    "write": lambda t: t.write([{**KEY, "v": "x", "n": 1}]),
    "compact": lambda t: t.compact(full=True),
    "mend": lambda t: t.mend_snapshots(),
    "restore": lambda t: t.restore(1),
    "expire": lambda t: t.expire_snapshots(retain_max=1, retain_min=1),
    "fast-forward": lambda t: t.fast_forward("b"),
    "rollback": lambda t: t.rollback_to("first"),
}
SEED = int(os.environ.get("KEYTIDE_SEED", "1"))


def outcome(store: Store, call: Callable[[kt.Table], Any]) -> Any:
    """What a call gives, or its error, which has to be one of Keytide's."""
    try:
        return call(table_in(store))
    except kt.KeytideError as error:
        return error


def check(name: str, mutation: mutations.Mutation) -> None:
    """Carry all calls out on a table with one other member."""
    store = mutations.MADE[name]()
    if not mutation.apply(store):
        return
    verified = outcome(store, lambda t: t.verify())
    found = {call: outcome(store, act) for call, act in CALLS.items()}
    if "/schema/" in mutation.path:
        return  # what a definition says is another table
    sound = {call: outcome(mutations.MADE[name](), act) for call, act in READS.items()}
    if any(repr(found[call]) != repr(sound[call]) for call in READS):
        assert not isinstance(verified, kt.Verification) or (
            verified.findings or verified.unchecked
        ), f"{mutation}: nobody is told of {found}"


@cache
def some(name: str) -> list[mutations.Mutation]:
    """All mutations of a table, in an order that the seed gives."""
    found = list(mutations.mutations(mutations.MADE[name]()))
    random.Random(SEED).shuffle(found)
    return found


@contextmanager
def noting(mutation: str) -> Iterator[None]:
    """A block whose errors name the mutation that was looked at."""
    try:
        yield
    except BaseException as error:
        error.add_note(mutation)
        raise


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("name", mutations.MADE)
def test_member_that_says_something_else_is_told_or_harmless(name: str, number: int) -> None:
    check(name, some(name)[number])


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", mutations.MADE)
def test_every_member_that_says_something_else_is_told_or_harmless(name: str) -> None:
    for mutation in some(name):
        with noting(f"{name}, {mutation}"):
            check(name, mutation)


@pytest.mark.parametrize("name", mutations.MADE)
def test_list_without_its_first_manifest_is_told_or_harmless(name: str) -> None:
    lists = [m for m in some(name) if "manifest-list" in m.path and m.place == (0,)]
    assert len(lists) > 10
    for mutation in lists:
        with noting(f"{name}, {mutation}"):
            check(name, mutation)


def test_snapshot_without_its_index_manifest_is_told_or_harmless() -> None:
    lost = [m for m in some("vectors") if m.place == ("indexManifest",)]
    assert len(lost) > 10
    for mutation in lost:
        with noting(str(mutation)):
            check("vectors", mutation)


@pytest.mark.takes_turns
@pytest.mark.timeout(60)
@pytest.mark.parametrize("member", ["schemaId", "_MAX_SEQUENCE_NUMBER", "_ROW_COUNT"])
def test_number_that_nothing_could_count_to_is_told_at_once(member: str) -> None:
    largest = [m for m in some("keyed") if m.place[-1] == member and m.value == 2**63 - 1]
    for mutation in largest[:1]:
        with noting(str(mutation)):
            check("keyed", mutation)
