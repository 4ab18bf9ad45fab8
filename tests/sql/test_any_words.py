"""Whatever words a statement is made of: it is parsed, or refused with an error of ours."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.sql.grammar import parse_statements

_WORDS = """
SELECT INSERT INTO UPDATE SET DELETE FROM MERGE USING ON WHEN MATCHED NOT THEN WHERE VALUES CREATE
TABLE AS WITH ALTER ADD COLUMN DROP EXPLAIN CALL DESCRIBE SHOW JOIN GROUP BY ORDER MAP ARRAY ROW
STRUCT CASE END CAST INTERVAL DATE TIMESTAMP X TRUE NULL IN BETWEEN AND OR OVER PARTITION LATERAL
UNNEST EXISTS DISTINCT INT DECIMAL PRIMARY KEY t k v 'a' 1 25.2 X'00FF' /*+OPTIONS('a'='b')*/
( ) < > >> [ ] { } , . ; : :: * + - / = == => -> $ @ ? ` " ' ''
"""
WORDS = _WORDS.split()
_STARTS = """
SELECT
INSERT INTO t
UPDATE t SET v =
DELETE FROM t WHERE
MERGE INTO t USING t AS s ON
CREATE TABLE t
ALTER TABLE t
CALL sys.compact(
"""
STARTS = _STARTS.splitlines()


@given(st.sampled_from(STARTS), st.lists(st.sampled_from(WORDS), max_size=12))
def test_words_in_any_order_are_parsed_or_refused(start: str, words: list[str]) -> None:
    with suppress(kt.KeytideError):
        parse_statements(" ".join([start, *words]))


def test_slip_of_the_parser_is_an_error_about_the_text() -> None:
    with pytest.raises(kt.InvalidError, match="cannot be parsed"):
        parse_statements("INSERT INTO t MAP (1, ARRAY k INT PRIMARY 3>>, VALUES['k', 1])")
