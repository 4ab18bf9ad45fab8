"""VARIANT values that Java shreds, by given and inferred schemas, are read as Java reads them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from feature_tables import RELEASE, make
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from java_judge import JavaPaimon
from py4j.protocol import Py4JError

import keytide as kt
from feature_cases import FeatureTable, as_json

NUMBERS = itertools.count()
NAMES = st.sampled_from(["a", "b", "c", "é", "\U0001f600", "\ufffd"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.text("aé\U0001f600\"\\", max_size=4), st.just("long " * 20),
    st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-300, 300), st.just(10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-(10**6), 10**6, places=2).map(float),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
).map(json.dumps)
KINDS = st.sampled_from(
    ["TINYINT", "SMALLINT", "INT", "BIGINT", "DOUBLE", "FLOAT", "STRING", "BOOLEAN", "VARIANT",
     "DECIMAL(5, 2)", "DECIMAL(18, 0)", "DECIMAL(38, 10)"]
)  # fmt: skip


def row_of(fields: dict[str, Any]) -> dict[str, Any]:
    named = [{"id": i, "name": name, "type": kind} for i, (name, kind) in enumerate(fields.items())]
    return {"type": "ROW", "fields": named}


SCHEMAS = st.recursive(
    KINDS,
    lambda inner: (
        inner.map(lambda kind: {"type": "ARRAY", "element": kind})
        | st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(row_of)
    ),
    max_leaves=5,
)
WAYS = st.one_of(
    SCHEMAS.map(lambda schema: {"variant.shreddingSchema": json.dumps(row_of({"x": schema}))}),
    SCHEMAS.map(
        lambda schema: {"parquet.variant.shreddingSchema": json.dumps(row_of({"x": schema}))}
    ),
    st.just({
        "variant.inferShreddingSchema": "true",
        "variant.shredding.minFieldCardinalityRatio": "0",
    }),
)  # fmt: skip


@pytest.fixture
def newest(java: JavaPaimon) -> JavaPaimon:
    if java.name != RELEASE:
        pytest.skip("earlier releases shred no values")
    return java


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.none() | VALUES, min_size=1, max_size=12), options=WAYS)
def test_interop_shredded_variants_are_read_as_java_reads_them(
    newest: JavaPaimon, lake: kt.Lake, values: list[str | None], options: dict[str, str]
) -> None:
    name = f"variants{next(NUMBERS)}"
    try:
        rows = make(newest, name, FeatureTable("VARIANT", (tuple(values),), options))
    except Py4JError:
        reject()  # Java infers a type that it does not have, such as DECIMAL(1, -30)
    expected = as_json(rows)
    assert expected is not None
    assert as_json(lake.table(name).scan().to_arrow()) == expected
    assert not lake.table(name).verify().findings
