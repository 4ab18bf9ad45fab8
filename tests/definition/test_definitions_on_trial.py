"""A definition that is accepted can be written: what every writer would refuse is not stored."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.options import SECTIONS
from keytide.options.values import ACTS
from new_tables import empty_table

SCHEMA = pa.schema(
    [
        pa.field("p", pa.int32(), nullable=False), pa.field("k", pa.int32(), nullable=False),
        ("a", pa.int32()), ("b", pa.int32()), ("s", pa.string()),
    ]
)  # fmt: skip
ROWS = [{"p": n % 2, "k": n, "a": n, "b": n, "s": "x"} for n in range(3)]
KEYS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "keyed": (["k"], []),
    "keyed in partitions": (["p", "k"], ["p"]),
    "keys move": (["k"], ["p"]),
    "rows": ([], []),
    "rows in partitions": ([], ["p"]),
}
# These say what the table is, and what its reads and writes do with rows; more of them meet.
WEIGHTY = {
    "bucket": ("-2", "-1", "1", "2"),
    "changelog-producer": ("input", "lookup", "full-compaction"),
    "merge-engine": ("deduplicate", "partial-update", "aggregation", "first-row"),
    "deletion-vectors.enabled": ("true",),
    "bucket-key": ("k", "a"),
    "file.format": ("parquet", "orc", "avro"),
    "changelog-file.format": ("orc", "avro"),
    "ignore-delete": ("true",),
    "write-only": ("true",),
    "sequence.field": ("a", "a,b"),
    "rowkind.field": ("s",),
    "watermark.key": ("a",),
    "write.count-out-of-order": ("true",),
    "data-evolution.enabled": ("true",),
    "row-tracking.enabled": ("true",),
}
OTHERS = {
    option.key: option.type.samples
    for options in SECTIONS.values()
    for option in options
    if option.use == ACTS and "<" not in option.key and option.key not in WEIGHTY
}
definitions = st.tuples(
    st.dictionaries(st.sampled_from(sorted(WEIGHTY)), st.integers(0, 9), max_size=4),
    st.dictionaries(st.sampled_from(sorted(OTHERS)), st.integers(0, 9), max_size=2),
).map(
    lambda drawn: {
        **{key: WEIGHTY[key][n % len(WEIGHTY[key])] for key, n in drawn[0].items()},
        **{key: OTHERS[key][n % len(OTHERS[key])] for key, n in drawn[1].items()},
    }
)


def new_table(keys: str, options: Mapping[str, str]) -> kt.Table:
    key, partitions = KEYS[keys]
    return empty_table(SCHEMA, key, partitions, options=options)


def altered(keys: str, options: Mapping[str, str]) -> kt.Table:
    """The same by ALTER, but for what has to be said when a table is made."""
    table = new_table(keys, {"bucket": "-1"} if keys == "keys move" else {})
    table.alter(*[SetOption(key, value) for key, value in options.items()])
    return table


@pytest.mark.takes_turns
@settings(max_examples=10 * settings.default.max_examples)
@given(
    keys=st.sampled_from(sorted(KEYS)),
    options=definitions,
    make=st.sampled_from([new_table, altered]),
)
def test_definition_that_is_accepted_can_be_written(
    keys: str, options: dict[str, str], make: Any
) -> None:
    rows = [{**row, "s": "+I"} for row in ROWS] if "rowkind.field" in options else ROWS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kt.KeytideWarning)
        if keys == "keys move":
            options = {"bucket": "-1"} | options
        try:
            table = make(keys, options)
        except (kt.InvalidError, kt.UnsupportedError, kt.NotFoundError) as error:
            event(f"refused: {type(error).__name__}")
            return
        event("accepted")
        table.write(rows)
        table.write(rows[:1])
    table.scan().count()
