"""External tables over Delta and Iceberg: one row per key, whatever was appended in which order.

A dict is the model: of a key the version with the highest watermark counts, of equal ones the one
that came last, and a tombstone takes the key away.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from iceberg_tables import create
from keytide.sources import delta, iceberg, source_state

VERSIONS = pa.schema(
    [("k", pa.int64()), ("ts", pa.int64()), ("gone", pa.bool_()), ("n", pa.int64())]
)
VERSION = st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 2)), st.booleans())
COMMITS = st.lists(st.lists(VERSION, min_size=1, max_size=4), min_size=1, max_size=5)

Append = Callable[[pa.Table], object]


def delta_table(folder: Path) -> tuple[Append, str, dict[str, str]]:
    path = str(folder / "t")
    return lambda rows: deltalake.write_deltalake(path, rows, mode="append"), path, {}


def iceberg_table(folder: Path) -> tuple[Append, str, dict[str, str]]:
    table = create(folder, VERSIONS)
    return table.append, "n.t", {"external.option.catalog.uri": f"sqlite:///{folder}/c.db"}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "delta": source_state.ExternalFormat(delta.open_source),
        "iceberg": source_state.ExternalFormat(
            iceberg.open_source, iceberg.OPTIONS, named_by=("catalog.uri",)
        ),
    }
    monkeypatch.setattr(source_state, "FORMATS", {**source_state.FORMATS, **made})


@pytest.mark.takes_turns
@pytest.mark.parametrize(("format_", "made"), [("delta", delta_table), ("iceberg", iceberg_table)])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(commits=COMMITS)
def test_table_is_the_model_of_its_versions(
    tmp_path_factory: pytest.TempPathFactory, format_: str, made: Any, commits: list[list[Any]]
) -> None:
    folder = tmp_path_factory.mktemp("others")
    append, location, options = made(folder)
    model: dict[int, tuple[int, bool, int]] = {}
    number = 0
    for versions in commits:
        rows = []
        for k, ts, gone in versions:
            rows.append({"k": k, "ts": ts, "gone": gone, "n": number})
            freshness = -1 if ts is None else ts
            if k not in model or freshness >= model[k][0]:
                model[k] = (freshness, gone, number)
            number += 1
        append(pa.Table.from_pylist(rows, VERSIONS))
    lake = kt.connect(folder / "lake")
    lake.create_external_table(
        "t", format=format_, location=location, options=options,
        primary_key=["k"], watermark_key=["ts"], tombstone_key="gone",
    )  # fmt: skip
    shown = {row["k"]: row["n"] for row in lake.sql("SELECT k, n FROM t").rows.to_pylist()}
    assert shown == {k: n for k, (_, gone, n) in model.items() if not gone}
    some = lake.sql("SELECT n FROM t WHERE k = 1").rows.to_pylist()
    assert [row["n"] for row in some] == ([shown[1]] if 1 in shown else [])
