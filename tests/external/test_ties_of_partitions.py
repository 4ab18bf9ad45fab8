"""A tie in a partitioned table is decided by the key's own versions, whatever else was written."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt

SCHEMA = pa.schema([("k", pa.int32()), ("p", pa.string()), ("w", pa.int32()), ("v", pa.int32())])
VERSIONS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from("abc"), st.just(1), st.integers(0, 3)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(versions=VERSIONS, others=st.lists(st.sampled_from("abc"), max_size=3, unique=True))
def test_other_rows_of_a_commit_do_not_decide_a_tie(
    tmp_path_factory: pytest.TempPathFactory,
    versions: list[tuple[int, str, int, int]],
    others: list[str],
) -> None:
    unrelated = [(9, partition, 1, 0) for partition in others]
    assert found(tmp_path_factory.mktemp("t"), [*unrelated, *versions]) == {
        key: max((p, v) for k, p, _, v in versions if k == key) for key, *_ in versions
    }


def found(folder: Path, rows: list[tuple[int, str, int, int]]) -> dict[int, tuple[str, int]]:
    """The partition and the value of each key but 9, read as a whole and key by key."""
    named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    deltalake.write_deltalake(
        str(folder / "d"), pa.Table.from_pylist(named, schema=SCHEMA), partition_by=["p"]
    )
    lake = kt.connect(folder / "lake")
    table = lake.create_external_table(
        "t", format="delta", location=folder / "d", primary_key=["k"], watermark_key=["w"]
    )
    whole = {row["k"]: (row["p"], row["v"]) for row in table.scan().to_arrow().to_pylist()}
    for key, row in whole.items():
        [alone] = lake.sql(f"SELECT p, v FROM t WHERE k = {key}").to_pylist()
        assert (alone["p"], alone["v"]) == row
    return {key: row for key, row in whole.items() if key != 9}
