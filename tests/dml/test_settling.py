"""A statement whose commit has landed, or may have, keeps its files whatever fails then."""

from __future__ import annotations

import pytest
from unanswered import Unanswered

import keytide as kt
from keytide.store.faults import Fault, FaultyStore
from new_tables import empty_store, fields_of

FAULTS = {
    "the answer is lost": [],
    "the user stops it": [Fault("hint", "*/LATEST", action="interrupt")],
}


@pytest.mark.parametrize("statement", ["DELETE FROM t WHERE v > 1", "UPDATE t SET v = v + 1"])
@pytest.mark.parametrize("fault", FAULTS)
def test_files_of_a_commit_stay(fault: str, statement: str) -> None:
    store = empty_store()
    table = kt.connect("", store=store).create_table("t", fields_of("k INT, v INT"), ["k"])
    table.write([{"k": n, "v": n} for n in range(3)])
    faults = FAULTS[fault]
    failing = FaultyStore(store, faults) if faults else Unanswered(store, "snapshot-2")
    faulty = kt.connect("", store=failing)
    with pytest.raises((kt.DataError, KeyboardInterrupt)):
        faulty.sql(statement)
    assert len(table.snapshots()) == 2
    assert table.verify().findings == ()
