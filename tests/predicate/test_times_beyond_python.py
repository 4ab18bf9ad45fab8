"""Dates and timestamps outside the years 1 to 9999, which no Python object holds.

PostgreSQL's 'infinity' and the year 0 come with feeds. They are stored and compared like all
others, shown as text, and refused by name where a Python object is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import keytide as kt
from keytide.base.text import cell_text, held_by_python, json_text
from keytide.cli.main import app

BEYOND = [9_223_372_036_825_200_000, -62_198_755_200_000_000, -9_223_372_036_832_400_000]
DAYS = [2**31 - 1, -719_163, -(2**31)]
UNITS = ["s", "ms", "us"]
TICKS = {"s": 1, "ms": 10**3, "us": 10**6}


def iso(text: str) -> str:
    """What numpy spells, with a sign only where it is needed, and four digits at least."""
    found = re.fullmatch(r"(-?)(\d+)(-.*)", text.replace("T", " "))
    assert found is not None
    return f"{found[1]}{found[2]:0>4}{found[3]}"


@given(days=st.integers(-(2**31), 2**31 - 1))
def test_any_date_is_spelled_by_its_calendar(days: int) -> None:
    values = pa.table({"d": pa.array([days, None], pa.int32()).cast(pa.date32())})
    frame = pl.from_arrow(values)
    assert isinstance(frame, pl.DataFrame)
    texts = frame.select(cell_text(pl.col("d"), pa.date32())).to_series().to_list()
    assert texts == [iso(str(np.datetime64(days, "D"))), None]
    if -719_162 <= days <= 2_932_896:
        assert texts[0] == date.fromordinal(days + 719_163).isoformat()


@given(ticks=st.integers(-(2**63) + 1, 2**63 - 1), unit=st.sampled_from(["ms", "us"]),
       zone=st.sampled_from([None, "UTC"]))  # fmt: skip
def test_any_timestamp_is_spelled_by_its_calendar(ticks: int, unit: str, zone: str | None) -> None:
    type_ = pa.timestamp(unit, zone)
    values = pa.table({"t": pa.array([ticks, None], pa.int64()).cast(type_)})
    frame = pl.from_arrow(values)
    assert isinstance(frame, pl.DataFrame)
    (text, none) = frame.select(cell_text(pl.col("t"), type_)).to_series()
    assert none is None
    expected = iso(str(np.datetime64(ticks, unit)))
    assert text.removesuffix("Z") == expected + {"ms": "", "us": ""}[unit]
    assert frame.select(json_text(pl.col("t"), type_)).item(0, 0).startswith(f'"{expected[:10]}')
    held = held_by_python(frame)["t"][0]
    assert isinstance(held, (str, datetime))


def new_rows(keys: list[int]) -> pa.Table:
    moments = pa.array([BEYOND[k % 3] for k in keys], pa.int64())
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "at": moments.cast(pa.timestamp("us")),
            "in_utc": moments.cast(pa.timestamp("us", "UTC")),
            "day": pa.array([DAYS[k % 3] for k in keys], pa.int32()).cast(pa.date32()),
            "many": pa.array([[BEYOND[k % 3]] for k in keys], pa.list_(pa.int64())).cast(
                pa.list_(pa.timestamp("us"))
            ),
        }
    )


KEYS: dict[str, tuple[list[str], list[str]]] = {
    "a number": (["id"], []),
    "a time": (["at"], []),
    "a day": (["day"], []),
    "a partition": (["id", "day"], ["day"]),
    "an instant": (["id", "in_utc"], ["in_utc"]),
}

DOORS: dict[str, Callable[[kt.Lake, kt.Table], Any]] = {
    "verify": lambda _, t: t.verify(),
    "doctor": lambda _, t: t.doctor(),
    "repr": lambda _, t: (repr(t), repr(t.scan()), repr(t.changes(0))),
    "a notebook": lambda lake, t: (
        t._repr_html_(), t.scan()._repr_html_(), t.changes(0)._repr_html_(),
        lake.sql("SELECT * FROM t")._repr_html_(),
    ),
    "explain": lambda _, t: t.scan(where="id = 1").explain(),
    "get": lambda _, t: t.get(1),
    "to_pylist": lambda _, t: t.scan().to_pylist(),
    "to_pandas": lambda _, t: t.scan().to_pandas(),
    "to_polars": lambda _, t: t.scan().to_polars(),
    "changes": lambda _, t: t.changes(0).to_arrow(),
    "why": lambda _, t: t.why(1),
    "compact": lambda _, t: t.compact(full=True),
    "update": lambda _, t: t.update({"many": "NULL"}, "id = 1"),
    "delete": lambda _, t: t.delete("id = 2"),
    "refused rows": lambda _, t: t.write(
        pa.concat_tables([new_rows([7]), new_rows([7])]).drop(["many"])
    ),
    **{
        f"${name}": lambda lake, _, name=name: lake.sql(f'SELECT * FROM "t${name}"').to_pylist()
        for name in ("files", "partitions", "buckets", "audit_log", "manifests", "ro")
    },
    **{
        " ".join(words): lambda lake, _, words=words: command(lake, *words)
        for words in (
            ("scan", "t"), ("scan", "t", "-f", "json"), ("scan", "t", "-f", "csv"),
            ("sql", "SELECT * FROM t"), ("sql", "SELECT * FROM t", "-f", "json"),
            ("verify", "t"), ("get", "t", "1"), ("why", "t", "1"), ("doctor", "t"),
        )
    },
}  # fmt: skip


def command(lake: kt.Lake, name: str, *words: str) -> None:
    done = CliRunner().invoke(app, [name, "-w", lake.uri, *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert "unexpected" not in done.output


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_anything_but_an_error_of_its_own_out(
    lake: kt.Lake, door: str, keys: str
) -> None:
    primary_key, partition_by = KEYS[keys]
    table = lake.create_table("t", new_rows([]).schema, primary_key, partition_by)
    for _ in range(2):
        table.write(new_rows([0, 1, 2]))
    try:
        DOORS[door](lake, table)
    except kt.KeytideError as error:
        said = str(error)
        assert "years 1 to 9999" in said or door in ("get", "why", "refused rows", "$ro"), said
    stored = table.scan(["at"]).to_arrow()["at"].cast(pa.int64()).to_pylist()
    assert set(stored) <= set(BEYOND)
    assert len(stored) >= 2
