"""A listing of a folder that others change meanwhile may show nothing of it.

A folder is not read at once: what was deleted before its turn is not seen, nor what was made after.
A rollback to a snapshot that a tag alone keeps puts it back and takes all others away, so a listing
beside it can show no snapshot at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.maintenance.test_following import OPTIONS, ROWS, SCHEMA, VERBS, Verb

import keytide as kt
from keytide.format import paths
from keytide.store.local import LocalStore
from overtaking import overtaken
from table_rows import dicts

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

OF_NO_CHANGE = {
    "create_tag": Verb(lambda lake, t: t.create_tag("b", 2)),
    "create_branch": Verb(lambda lake, t: t.create_branch("b", 2)),
    "expire_snapshots": Verb(lambda lake, t: t.expire_snapshots(retain_max=1, retain_min=1)),
    "rollback to what is not there": Verb(lambda lake, t: t.rollback_to(77)),
    "rollback to a time": Verb(lambda lake, t: t.rollback_to(as_of=LONG_AGO)),
    "delete_tag": Verb(lambda lake, t: t.delete_tag("a")),
    "remove_orphan_files": Verb(lambda lake, t: t.remove_orphan_files(timedelta(days=1))),
    "snapshots": Verb(lambda lake, t: t.snapshots()),
    "changes": Verb(lambda lake, t: t.changes(1).to_arrow()),
    "why": Verb(lambda lake, t: t.why(ROWS[0])),
    "doctor": Verb(lambda lake, t: t.doctor()),
    "time travel": Verb(lambda lake, t: t.scan(snapshot_id=2).to_arrow()),
    "verify": Verb(lambda lake, t: t.verify()),
}


@dataclass
class Listings:
    """Counts the listings of snapshots from now on, and has one of them show nothing."""

    of_none: int
    count: int = 0


@contextmanager
def listings(of_none: int) -> Iterator[Listings]:
    found, listed = Listings(of_none), LocalStore.list_names

    def list_names(store: LocalStore, directory: str = "") -> list[str]:
        if directory != paths.snapshot_dir():
            return listed(store, directory)
        found.count += 1
        return [] if found.count == found.of_none else listed(store, directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "list_names", list_names)
        yield found


@pytest.mark.one_in(14)
@pytest.mark.parametrize("verb", {**VERBS, **OF_NO_CHANGE}.values(), ids={**VERBS, **OF_NO_CHANGE})
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_listing_that_shows_nothing_leaves_a_sound_table(verb: Verb, tmp_path: Path) -> None:
    of_none = 1
    while True:
        lake = kt.connect(str(tmp_path / str(of_none)))
        options = {**(OPTIONS if verb.has_key else {}), **verb.options}
        key = ["k", "p"] if verb.has_key else []
        t = lake.create_table("t", SCHEMA, key, ["p"], options=options)
        for number in range(3):
            t.write([{**row, "v": number} for row in ROWS])
        t.create_tag("a", 2)
        with listings(of_none) as seen, suppress(kt.KeytideError):
            verb.do(lake, t)
        assert lake.table("t").verify().is_healthy
        if seen.count < of_none:
            return
        of_none += 1


@pytest.mark.parametrize("of_none", range(1, 5))
def test_write_beside_a_rollback_whose_folder_shows_nothing_is_made_on_what_is_there(
    of_none: int, tmp_path: Path
) -> None:
    t = kt.connect(str(tmp_path)).create_table("t", SCHEMA, ["k", "p"], options={"bucket": "1"})
    for number in range(3):
        t.write([{**ROWS[0], "v": number}])
    t.create_tag("a", 1)
    t.expire_snapshots(retain_max=1, retain_min=1)
    with ExitStack() as moving:

        def roll_back() -> None:
            t.rollback_to("a")
            moving.enter_context(listings(of_none))

        overtaken(t, roll_back).write([ROWS[1]])
    found = dicts(t)
    assert found == [{**ROWS[0], "v": 0}, ROWS[1]]
