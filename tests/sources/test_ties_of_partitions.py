"""A tie in a partitioned table is decided by the key's own versions, whatever else was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import deltalake
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import iceberg_tables
import keytide as kt

SCHEMA = pa.schema([("k", pa.int32()), ("p", pa.string()), ("w", pa.int32()), ("v", pa.int32())])
Version: TypeAlias = tuple[int, str, int]
"""Key, partition and value. All have one watermark."""
VERSIONS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from("abc"), st.integers(0, 3)), max_size=5
)
COMMITS = st.lists(
    st.tuples(VERSIONS, st.lists(st.sampled_from("abc"), max_size=3, unique=True)),
    min_size=1,
    max_size=3,
)
"""By commit, the versions of keys 0 and 1, and the partitions with a row of another key."""


def delta(folder: Path, commits: Sequence[pa.Table]) -> dict[str, Any]:
    for rows in commits:
        deltalake.write_deltalake(str(folder / "d"), rows, partition_by=["p"], mode="append")
    return {"format": "delta", "location": folder / "d"}


def iceberg(folder: Path, commits: Sequence[pa.Table]) -> dict[str, Any]:
    table = iceberg_tables.create(folder, SCHEMA)
    with table.update_spec() as spec:
        spec.add_identity("p")
    for rows in commits:
        table.append(rows)
    return {"format": "iceberg", "location": table.location()}


@pytest.mark.takes_turns
@pytest.mark.parametrize("written", [delta, iceberg])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(commits=COMMITS)
def test_other_rows_do_not_decide_a_tie(
    tmp_path_factory: pytest.TempPathFactory,
    written: Callable[[Path, Sequence[pa.Table]], dict[str, Any]],
    commits: list[tuple[list[Version], list[str]]],
) -> None:
    """The last commit that has a key wins, and in it the largest row."""
    stored = [rows_of([*((9, p, 0) for p in others), *own]) for own, others in commits]
    expected: dict[int, tuple[str, int]] = {}
    for own, _ in commits:
        expected |= {key: max((p, v) for k, p, v in own if k == key) for key, *_ in own}
    folder = tmp_path_factory.mktemp("t")
    lake = kt.connect(folder / "lake")
    table = lake.create_external_table(
        "t", **written(folder, stored), primary_key=["k"], watermark_key=["w"]
    )
    rows = {row["k"]: (row["p"], row["v"]) for row in table.scan().to_arrow().to_pylist()}
    rows.pop(9, None)
    assert rows == expected
    for key, row in expected.items():
        [alone] = lake.sql(f"SELECT p, v FROM t WHERE k = {key}").to_pylist()
        assert (alone["p"], alone["v"]) == row


def rows_of(versions: Sequence[Version]) -> pa.Table:
    named = [dict(zip(("k", "p", "v"), version, strict=True), w=1) for version in versions]
    return pa.Table.from_pylist(named, schema=SCHEMA)
