"""Deletion vectors: everybody reads what Keytide marked, and Java marks rows in turn with it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from interop_judges import Judge, assert_reads_alike, expecting, refusal
from interop_values import field, typed, value_lines
from java_judge import JavaPaimon

import keytide as kt
from new_tables import dotted

COLUMNS = [field("k", "INT NOT NULL"), field("v", "STRING"), field("s", "INT")]
FORMS = {"32 bits": "false", "64 bits": "true"}
NUMBERS = itertools.count()
# pypaimon knows vectors of 32 bits only.
UNREAD = {("pypaimon", "64 bits"): refusal("Invalid magic number")}


def marked(lake: kt.Lake, form: str = "32 bits", **options: str) -> kt.Table:
    named = dotted(options)
    vectors = {"deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": FORMS[form]}
    name = f"db.t{next(NUMBERS)}"
    return lake.create_table(name, COLUMNS, ["k"], options={**vectors, **named})


def dead(table: kt.Table) -> int:
    """How many rows are marked."""
    files = table.scan().state.vector_files
    return sum(place.cardinality or 0 for file in files for place in file.ranges or ())


@pytest.mark.one_in(14)
@pytest.mark.parametrize("form", FORMS)
def test_interop_marked_rows_show_nowhere(judge: Judge, lake: kt.Lake, form: str) -> None:
    table = marked(lake, form, sequence__field="s")
    table.write(typed(table, *(f"+I {n} a{n} 5" for n in range(8))))
    assert_reads_alike(judge, table)
    for n in range(7):
        table.write(typed(table, f"+I {n} b{n} {n + 4}", f"-D {n + 1} x {n + 3}"))
        with expecting(UNREAD.get((judge.name, form)) if dead(table) else None):
            assert_reads_alike(judge, table)
    table.compact(full=True)
    assert dead(table)  # deletes that stay
    with expecting(UNREAD.get((judge.name, form))):
        assert_reads_alike(judge, table)
        assert_reads_alike(judge, table, columns=["v"])


def test_interop_file_of_nothing_but_deletes_shows_nothing(judge: Judge, lake: kt.Lake) -> None:
    table = marked(lake, sequence__field="s")
    table.write(typed(table, "+I 1 a 5", "+I 2 a 5"))
    table.write(typed(table, "-D 1 a 6", "-D 9 a 6"))
    assert_reads_alike(judge, table)
    table.write(typed(table, "-D 2 a 6"))
    assert assert_reads_alike(judge, table) == []


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "partial-update"},
        {"merge-engine": "aggregation", "fields.s.aggregate-function": "sum"},
    ],
    ids=lambda options: options["merge-engine"],
)
def test_interop_values_that_were_put_together_read_alike(
    judge: Judge, lake: kt.Lake, options: dict[str, str]
) -> None:
    table = marked(lake, **options)
    for n in range(6):
        table.write(typed(table, f"+I {n % 3} a{n} {n}", f"+I {n % 4} NULL {n}"))
        assert_reads_alike(judge, table)
    assert dead(table)


# -- in turn with Java -----------------------------------------------------------------------------

a_row = st.tuples(
    st.integers(0, 5), st.none() | st.sampled_from(["a", "b"]), st.integers(0, 9),
    st.sampled_from(["+I", "+I", "-D"]),
)  # fmt: skip
some_rows = st.lists(a_row, min_size=1, max_size=5)
a_step = st.one_of(
    st.tuples(st.sampled_from(["Keytide writes", "Java writes"]), some_rows),
    st.tuples(st.sampled_from(["Keytide compacts", "Java compacts"]), st.just([])),
)


@pytest.mark.parametrize("form", FORMS)
@given(steps=st.lists(a_step, min_size=2, max_size=7), buckets=st.sampled_from(["1", "2"]))
@settings(
    max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_interop_java_and_keytide_mark_rows_in_turn(
    java: JavaPaimon, lake: kt.Lake, form: str, steps: list[Any], buckets: str
) -> None:
    table = marked(lake, form, bucket=buckets)
    expected: dict[int, str] = {}
    for doing, given_rows in steps:
        lines = [f"{kind} {k} {v or 'NULL'} {s}" for k, v, s, kind in given_rows]
        for k, v, s, kind in given_rows:
            expected.pop(k, None)
            expected |= {} if kind == "-D" else {k: f"{k} {v or 'NULL'} {s}"}
        if doing == "Keytide writes":
            table.write(typed(table, *lines))
        elif doing == "Java writes":
            java.write(table.name, typed(table, *lines))
        elif table.scan().live.entries:
            if doing == "Keytide compacts":
                table.compact(full=True)
            else:
                java.compact(table.name)
        event(f"{doing}, {'some' if dead(table) else 'none'} dead")
        assert_reads_alike(java, table)
        assert value_lines(table) == sorted(expected.values())
