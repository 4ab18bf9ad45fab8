"""The text of a condition is parsed once, whichever way it goes; one that is a value, never."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlglot
import sqlglot.parser

import keytide as kt
from keytide.predicate import where
from keytide.predicate.predicate import Comparison

PARSERS = {
    (where.__file__, "parse_where"): lambda given: given["text"],
    (where.__file__, "agreed_predicate"): lambda given: given["text"],
    (sqlglot.parser.__file__, "_parse"): lambda given: _part(given["raw_tokens"], given["sql"]),
}
"""What parses, and which text of what it is given."""
MARK = "4711"
BIG = Comparison("n", ">", 4711)


def _part(tokens: list[sqlglot.Token], text: str) -> str:
    """What some tokens of a text say."""
    return text[tokens[0].start : tokens[-1].end + 1] if tokens else ""


@contextmanager
def parsed() -> Iterator[list[str]]:
    """The texts with the mark in them that are parsed in a block."""
    found: list[str] = []

    def look(frame: Any, event: str, _: Any) -> None:
        text_of = PARSERS.get((frame.f_code.co_filename, frame.f_code.co_name))
        text = "" if event != "call" or text_of is None else text_of(frame.f_locals)
        # A literal that holds a condition is no condition yet.
        if MARK in text and not text.strip().startswith("'"):
            found.append(text)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)


@pytest.fixture
def lake(tmp_path: Path) -> kt.Lake:
    lake = kt.connect(tmp_path)
    lake.sql(
        """
        CREATE TABLE t (p INT, k INT, n INT, PRIMARY KEY (p, k) NOT ENFORCED) PARTITIONED BY (p);
        INSERT INTO t VALUES (1, 1, 1), (1, 2, 4712), (2, 3, 9999)
        """
    )
    return lake


def sql(text: str) -> Callable[[kt.Lake], Any]:
    return lambda lake: lake.sql(text).to_pylist()


TEXTS: dict[str, Callable[[kt.Lake], Any]] = {
    "SELECT": sql("SELECT k FROM t WHERE n > 4711 AND p = 1"),
    "SELECT of a part": sql("SELECT k FROM t WHERE n > 4711 AND upper(p || '') = '1'"),
    "EXPLAIN": sql("EXPLAIN SELECT k FROM t WHERE n > 4711"),
    "DELETE": sql("DELETE FROM t WHERE n > 4711"),
    "DELETE of a part": sql("DELETE FROM t WHERE n > 4711 AND n + 1 > 0"),
    "UPDATE": sql("UPDATE t SET n = 0 WHERE n > 4711"),
    "CALL": sql("CALL sys.compact(`table` => 't', where => 'p < 4711')"),
    "scan": lambda lake: lake.table("t").scan(where="n > 4711").to_arrow(),
    "count": lambda lake: lake.table("t").scan(where="n > 4711").count(),
    "delete": lambda lake: lake.table("t").delete("n > 4711"),
    "update": lambda lake: lake.table("t").update({"n": 0}, "n > 4711"),
}
VALUES: dict[str, Callable[[kt.Lake], Any]] = {
    "scan": lambda lake: lake.table("t").scan(where=BIG).to_arrow(),
    "delete": lambda lake: lake.table("t").delete(BIG),
    "update": lambda lake: lake.table("t").update({"n": 0}, BIG),
    "expression": lambda lake: lake.table("t").scan(where=pl.col("n") > 4711).to_arrow(),
}


@pytest.mark.parametrize("way", TEXTS.values(), ids=TEXTS)
def test_text_is_parsed_once(lake: kt.Lake, way: Callable[[kt.Lake], Any]) -> None:
    with parsed() as texts:
        way(lake)
    assert len(texts) == 1, texts


@pytest.mark.parametrize("way", VALUES.values(), ids=VALUES)
def test_value_is_not_parsed(lake: kt.Lake, way: Callable[[kt.Lake], Any]) -> None:
    with parsed() as texts:
        way(lake)
    assert texts == []
