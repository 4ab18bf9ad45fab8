"""Every word of a statement counts: one that the parser would leave out of its tree is refused."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlglot import Token, TokenType, exp

import keytide as kt
from keytide.sql import cursor, token_account
from keytide.sql.grammar import parse_statements

ROOT = Path(__file__).parents[2]
TABLE = "CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)"

UNREAD = {
    "UPDATE t SET v = 1 SET v = 2": "SET is given twice",
    "UPDATE t SET v = 1 WHERE k = 1 WHERE k = 2": "WHERE",
    "DELETE FROM t WHERE k = 1 WHERE k = 2": "WHERE",
    "SELECT k FROM t WHERE k = 1 WHERE k = 2": "WHERE",
    "SELECT k FROM t LIMIT 1 LIMIT 2": "LIMIT",
    "SELECT k FROM t ORDER BY k ORDER BY v": "ORDER BY",
    "SELECT k FROM t GROUP BY k HAVING k > 1 HAVING k > 2": "HAVING",
    "FROM t VALUES (1)": "t",
    "SELECT AS JSON k FROM t": "JSON",
    "UPDATE t SET v = 1 FROM t AS s FROM t AS u": "FROM",
    "SELECT k,, v FROM t": ",",
}


@pytest.mark.parametrize("text", UNREAD)
def test_statement_with_a_word_that_would_not_count_is_refused(warehouse: str, text: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql(f"{TABLE}; INSERT INTO t VALUES (1, 0), (2, 0)")
    with pytest.raises(kt.InvalidError) as refused:
        lake.sql(text)
    assert UNREAD[text] in str(refused.value)
    assert "line 1" in str(refused.value)
    assert [row["v"] for row in lake.table("t").scan().to_pylist()] == [0, 0]


def texts_of_tests() -> Iterator[str]:
    """The SQL that tests and documents have, which has been seen to mean what it says."""
    for name in ("README.md", "docs/sql.md", "docs/history.md", "docs/write-a-connector.md"):
        yield from re.findall(r"```sql\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
    for file in sorted((ROOT / "tests/data/cases").glob("*.json")):
        yield from texts_in(json.loads(file.read_text("utf-8")))
    for file in sorted(file for part in ("sql", "dml", "cli", "spark")
                       for file in (ROOT / "tests" / part).glob("*.py")):  # fmt: skip
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_in(each)


TYPES = [
    "VARCHAR(10)", "CHAR(3)", "CHARACTER VARYING(10)", "DECIMAL(10, 2)", "TIMESTAMP(3)",
    "STRING", "ARRAY<INT>", "MAP<STRING, INT>", "DOUBLE", "BIGINT",
]  # fmt: skip


def test_condition_after_a_word_of_another_operator_is_read(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql(f"{TABLE}; INSERT INTO t VALUES (1, 0), (2, NULL)")
    text = "SELECT k FROM t WHERE k IS DISTINCT FROM 3 AND v IS NOT NULL"
    assert lake.sql(text).to_pylist() == [{"k": 1}]


@pytest.mark.parametrize("kind", TYPES)
def test_types_have_no_unread_words(kind: str) -> None:
    assert parses(f"SELECT CAST(k AS {kind}) FROM t")


@pytest.fixture(scope="module")
def texts() -> dict[str, bool]:
    """The texts of tests and documents, and whether they parse."""
    return {text: parses(text) for text in {*texts_of_tests()}}


@pytest.mark.takes_turns
def test_no_text_that_means_something_has_unread_words(
    texts: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off = {text for text in texts if text.rstrip().endswith(",")}
    refused = {text for text, is_parsed in texts.items() if not is_parsed} - {*UNREAD} - cut_off
    monkeypatch.setattr(cursor, "unused_token", lambda *_: None)
    assert [text for text in refused if parses(text)] == []
    assert sum(texts.values()) > 500


@pytest.mark.takes_turns
def test_no_word_of_a_text_that_means_something_is_found_unread_if_it_is_tried(
    texts: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a word is tried depends on all others; what comes of a trial must not."""

    def every(tokens: Sequence[Token], tree: exp.Expr) -> list[int]:
        doubtful = {*search(tokens, tree)}
        return [i for i, token in enumerate(tokens) if i in doubtful or is_word(tokens, i, token)]

    short = [text for text, is_parsed in texts.items() if is_parsed and len(text) < 2_000]
    search = token_account._doubtful
    monkeypatch.setattr(token_account, "_doubtful", every)
    monkeypatch.setattr(token_account, "_TRIALS", 1 << 30)
    assert [text for text in short if not parses(text)] == []
    assert len(short) > 500


def is_word(tokens: Sequence[Token], index: int, token: Token) -> bool:
    """Whether a token is a word which has no place where it is left to the search alone."""
    if token.token_type is TokenType.ALIAS or token_account._is_length(tokens, index):
        return False
    after = tokens[index + 1].token_type if index + 1 < len(tokens) else None
    is_function = token.token_type is TokenType.VAR and after is TokenType.L_PAREN
    return not is_function and (
        token.token_type in token_account._VALUES or token_account._is_wordlike(token.text)
    )


def parses(text: str) -> bool:
    try:
        parse_statements(text)
    except kt.KeytideError:
        return False
    return True
