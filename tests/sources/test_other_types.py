"""Definitions that give columns other types than a source has: conditions mean the definition's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.sources import delta, source_state
from keytide.types import Field, parse_sql_type

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    known = {**source_state.FORMATS, "delta": source_state.ExternalFormat(delta.open_source)}
    monkeypatch.setattr(source_state, "FORMATS", known)
    rows = pa.table(
        {
            "at": pa.array([1_000_000, 2_000_000], pa.timestamp("us")),
            "name": ["a", "b "],
            "small": pa.array([1, 2], pa.int32()),
        }
    )
    deltalake.write_deltalake(str(tmp_path / "t"), rows)
    return kt.connect(tmp_path / "lake")


@pytest.mark.parametrize(
    ("column", "type_", "where", "rows"),
    [
        ("at", "TIMESTAMP(0)", "at = TIMESTAMP '1970-01-01 00:00:01'", 1),
        ("name", "CHAR(3)", "name = 'b'", 1),
        ("small", "BIGINT", "small < 5000000000", 2),
        ("small", "INT", "small = 2", 1),
    ],
)
def test_condition_on_the_key_is_met_in_the_types_of_the_definition(
    lake: Any, tmp_path: Path, column: str, type_: str, where: str, rows: int
) -> None:
    key = Field(0, column, parse_sql_type(type_).with_nullable(False))
    lake.create_external_table(
        "t", format="delta", location=tmp_path / "t", primary_key=[column], schema=[key]
    )
    assert lake.sql(f"SELECT * FROM t WHERE {where}").rows.num_rows == rows
