"""A statement with a word too many or too few is carried out, or refused as a text.

The library that parses makes trees of some such texts that its own passes cannot walk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

import keytide as kt

STATEMENTS = [
    "SELECT * FROM t LATERAL VIEW explode(array(k)) x AS y",
    "SELECT k, sum(v) AS s FROM t AS a WHERE v > 1 GROUP BY k HAVING sum(v) > 0 ORDER BY s LIMIT 2",
    "WITH c AS (SELECT k FROM t) SELECT c.k FROM c JOIN t USING (k) UNION ALL SELECT 1",
    "SELECT x FROM UNNEST(array[1, 2]) AS u(x), t AS b WHERE b.k IN (SELECT k FROM t)",
    "SELECT row_number() OVER (PARTITION BY v ORDER BY k) FROM t",
    "UPDATE t SET v = CASE WHEN v > 1 THEN 2 ELSE v + 1 END WHERE k = 1",
    "DELETE FROM t WHERE k IN (SELECT k FROM t WHERE v IS NULL)",
    "INSERT INTO t VALUES (1, 2), (3, 4)",
    "MERGE INTO t USING (SELECT 1 AS k) AS s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = 3",
]
WORDS = re.compile(r"\w+|[^\w\s]")
ADDED = [".", ",", "(", ")", "*", "[", "AS", "JOIN t AS j ON true"]


@pytest.fixture(scope="module")
def lake() -> kt.Lake:
    lake = kt.connect("memory://odd-statements")
    lake.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    return lake


def mutations(statement: str) -> Iterator[str]:
    words = WORDS.findall(statement)
    for place in range(1, len(words) + 1):
        yield " ".join([*words[:place], *words[place + 1 :]])
        for word in ADDED:
            yield " ".join([*words[:place], word, *words[place:]])


@pytest.mark.one_in(14)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statement_with_a_word_too_many_or_too_few_is_carried_out_or_refused(
    lake: kt.Lake, statement: str
) -> None:
    for text in mutations(statement):
        with suppress(kt.KeytideError):
            lake.sql(text).to_arrow()


def test_form_that_no_pass_can_walk_is_refused_with_a_way_out(lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match="simpler form"):
        lake.sql("SELECT * FROM t LATERAL VIEW . explode(array(k)) x AS y")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ";",
        "-- a /*+ OPTIONS('scan.snapshot-id' = '1') */",
        "/*+ OPTIONS('a'='b') */",
        "; /*+ OPTIONS('a'='b') */",
    ],
)
def test_text_without_a_statement_is_refused_whatever_its_comments_say(
    lake: kt.Lake, text: str
) -> None:
    with pytest.raises(kt.InvalidError, match=r"no statement|belongs into a statement"):
        lake.sql(text)


def test_hint_before_the_first_statement_is_refused(lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match="a hint belongs into a statement"):
        lake.sql("/*+ OPTIONS('scan.snapshot-id' = '1') */ SELECT * FROM t")


def test_hint_in_one_text_of_a_call_is_none_of_the_next(lake: kt.Lake) -> None:
    table = lake.create_table("u", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    table.write([{"k": 1, "v": 1}])
    table.write([{"k": 1, "v": 2}])
    past = "(SELECT max(v) FROM u /*+ OPTIONS('scan.snapshot-id' = '1') */)"
    table.update({"v": past}, f"v > {past}")
    assert table.get(1) == {"k": 1, "v": 1}
