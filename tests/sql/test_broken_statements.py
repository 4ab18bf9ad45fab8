"""Statements cut off, short of a word, or with a part in brackets are carried out or refused."""

from __future__ import annotations

from contextlib import suppress

import pytest

import keytide as kt
from keytide.sql.cursor import tokenize

STATEMENTS = [
    "CREATE TABLE IF NOT EXISTS u (id INT NOT NULL COMMENT 'c', v ARRAY<INT>, d DECIMAL(9, 2),"
    " PRIMARY KEY (id) NOT ENFORCED) PARTITIONED BY (id) WITH ('bucket' = '2')",
    "CREATE TABLE w WITH ('bucket' = '1', 'primary-key' = 'id') AS SELECT * FROM t",
    "INSERT INTO t (id, v) VALUES (1, 'a'), (2, NULL)",
    "INSERT OVERWRITE p PARTITION (d = '1') SELECT id, v FROM t WHERE id BETWEEN 1 AND 2",
    "SELECT x.id, count(*) AS n FROM t VERSION AS OF 1 AS x WHERE v LIKE 'a%' OR NOT id IN (1, 2)"
    " GROUP BY x.id HAVING count(*) > 0 ORDER BY x.id DESC NULLS LAST LIMIT 3 OFFSET 1",
    "SELECT * FROM t TIMESTAMP AS OF '2024-01-01 00:00:00' WHERE id = CAST('1' AS INT)",
    "SELECT * FROM t FOR VERSION AS OF 1",
    "SELECT * FROM t /*+ OPTIONS('scan.snapshot-id' = '1') */ AS x CROSS JOIN p",
    "SELECT a.id FROM t a LEFT JOIN t$snapshots s ON a.id = s.snapshot_id, UNNEST([1]) AS u(n)",
    "WITH c AS (SELECT id FROM t) SELECT CASE WHEN id = 1 THEN 'x' ELSE NULL END FROM c UNION ALL"
    " SELECT v FROM t",
    "UPDATE t AS x SET v = upper(v), n = n + 1 WHERE x.id >= 2 AND v IS NOT NULL",
    "DELETE FROM t AS x WHERE x.id IN (7, 8) OR v = DATE '2024-01-01'",
    "ALTER TABLE t ADD COLUMN IF NOT EXISTS e STRING AFTER v",
    "ALTER TABLE t SET ('write-only' = 'true')",
    "ALTER TABLE t ALTER COLUMN n TYPE BIGINT",
    "DESCRIBE EXTENDED t",
    "SHOW TABLES IN default LIKE '*'",
    "SHOW CREATE TABLE t",
    "CALL sys.why('default.t', 1)",
    "DROP TABLE IF EXISTS default.u",
]


TABLES = """
CREATE TABLE t (id INT, v STRING, n INT, PRIMARY KEY (id) NOT ENFORCED);
CREATE TABLE p (id INT, v STRING, d STRING, PRIMARY KEY (id, d) NOT ENFORCED)
    PARTITIONED BY (d);
INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20)
"""


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda text: " ".join(text.split()[:3]))
def test_statement_cut_off_or_changed_at_one_word_ends_in_rows_or_an_error_of_keytide(
    lake: kt.Lake, statement: str
) -> None:
    tokens = tokenize(statement)
    assert len(tokens) > 1
    for token in tokens:
        cut_off = statement[: token.start]
        without = cut_off + statement[token.end + 1 :]
        united = f"({statement}) AS x UNION ALL SELECT {cut_off}"
        for text in (cut_off, f"EXPLAIN {cut_off} \n ", without, united):
            with suppress(kt.KeytideError):
                lake.sql(text)


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO orders SELECT * FROM x",
        "UPDATE orders SET status = 'x' WHERE id IN (SELECT id FROM x)",
        "DELETE FROM orders WHERE id IN (SELECT id FROM x)",
        "MERGE INTO orders USING x ON orders.id = x.id WHEN MATCHED THEN DELETE",
    ],
    ids=lambda text: text.split()[0],
)
def test_with_in_front_of_a_change_says_where_it_stands(lake: kt.Lake, change: str) -> None:
    with pytest.raises(kt.InvalidError, match="WITH is only allowed before queries; in an INSERT"):
        lake.sql(f"WITH x AS (SELECT 1 AS id) {change}")
