"""Each verb does to a table with an index of keys what it does to one that merges, or refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.maintenance.test_following import OPTIONS, ROWS, SCHEMA, VERBS, Verb

import keytide as kt

KEYED = {name: verb for name, verb in VERBS.items() if verb.has_key}


def outcome(lake: kt.Lake, verb: Verb, options: dict[str, str]) -> tuple[bool, Any]:
    """Whether a verb was refused, and the rows after it."""
    options = {**OPTIONS, **verb.options, **options}
    t = lake.create_table("t", SCHEMA, ["k", "p"], ["p"], options=options)
    for number in range(3):
        t.write([{**row, "v": number} for row in ROWS])
    try:
        verb.do(lake, t)
    except kt.KeytideError as error:
        return True, str(error)
    assert lake.table("t").verify().is_healthy
    return False, {
        name: sorted(map(json.dumps, lake.table(name).scan().to_pylist())) for name in lake.tables()
    }


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", KEYED)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_verb_does_the_same_or_is_refused(name: str, tmp_path: Path) -> None:
    merging = outcome(kt.connect(str(tmp_path / "merging")), KEYED[name], {})
    found = outcome(kt.connect(str(tmp_path / "indexed")), KEYED[name], {"upsert.mode": "full"})
    assert not merging[0], "the verb is to change something"
    assert found == merging
