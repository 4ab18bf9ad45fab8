"""Published examples of the systems that Keytide unites, typed as SQL, on both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import keytide as kt
from table_rows import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What is typed, and the rows that the last statement has to show.
EXAMPLES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "partial update": (
        """
        CREATE TABLE t (k INT, price DOUBLE, qty INT, note STRING, PRIMARY KEY (k) NOT ENFORCED)
        WITH ('merge-engine' = 'partial-update');
        INSERT INTO t VALUES (1, 23.0, 10, CAST(NULL AS STRING));
        INSERT INTO t VALUES (1, CAST(NULL AS DOUBLE), CAST(NULL AS INT), 'This is a book');
        INSERT INTO t VALUES (1, 25.2, CAST(NULL AS INT), CAST(NULL AS STRING));
        SELECT * FROM t
        """,
        [(1, 25.2, 10, "This is a book")],
    ),
    "sequence group": (
        """
        CREATE TABLE t (
          k INT, a INT, b INT, g_1 INT, c INT, d INT, g_2 INT, PRIMARY KEY (k) NOT ENFORCED
        ) WITH (
          'merge-engine' = 'partial-update',
          'fields.g_1.sequence-group' = 'a,b',
          'fields.g_2.sequence-group' = 'c,d'
        );
        INSERT INTO t VALUES (1, 1, 1, 1, 1, 1, 1);
        -- g_2 is NULL, so c and d are not updated
        INSERT INTO t VALUES (1, 2, 2, 2, 2, 2, CAST(NULL AS INT));
        -- g_1 is smaller, so a and b are not updated
        INSERT INTO t VALUES (1, 3, 3, 1, 3, 3, 3);
        SELECT * FROM t
        """,
        [(1, 2, 2, 2, 3, 3, 3)],
    ),
    "several sequence fields": (
        """
        CREATE TABLE t (
          k INT, a INT, b INT, g_1 INT, c INT, d INT, g_2 INT, g_3 INT,
          PRIMARY KEY (k) NOT ENFORCED
        ) WITH (
          'merge-engine' = 'partial-update',
          'fields.g_1.sequence-group' = 'a,b',
          'fields.g_2,g_3.sequence-group' = 'c,d'
        );
        INSERT INTO t VALUES (1, 1, 1, 1, 1, 1, 1, 1);
        INSERT INTO t VALUES (1, 2, 2, 2, 2, 2, 1, CAST(NULL AS INT));
        INSERT INTO t VALUES (1, 3, 3, 1, 3, 3, 3, 1);
        SELECT * FROM t
        """,
        [(1, 2, 2, 2, 3, 3, 3, 1)],
    ),
    "aggregation inside of groups": (
        """
        CREATE TABLE t (k INT, a INT, b INT, c INT, d INT, PRIMARY KEY (k) NOT ENFORCED) WITH (
          'merge-engine' = 'partial-update',
          'fields.a.sequence-group' = 'b',
          'fields.b.aggregate-function' = 'first_value',
          'fields.c.sequence-group' = 'd',
          'fields.d.aggregate-function' = 'sum'
        );
        INSERT INTO t VALUES (1, 1, 1, CAST(NULL AS INT), CAST(NULL AS INT));
        INSERT INTO t VALUES (1, CAST(NULL AS INT), CAST(NULL AS INT), 1, 1);
        INSERT INTO t VALUES (1, 2, 2, CAST(NULL AS INT), CAST(NULL AS INT));
        INSERT INTO t VALUES (1, CAST(NULL AS INT), CAST(NULL AS INT), 2, 2);
        SELECT * FROM t
        """,
        [(1, 2, 1, 2, 3)],
    ),
    "aggregation in a group of several fields": (
        """
        CREATE TABLE t (
          k INT, a INT, b INT, g_1 INT, c STRING, g_2 INT, g_3 INT, PRIMARY KEY (k) NOT ENFORCED
        ) WITH (
          'merge-engine' = 'partial-update',
          'fields.a.aggregate-function' = 'sum',
          'fields.g_1,g_3.sequence-group' = 'a',
          'fields.g_2.sequence-group' = 'c'
        );
        INSERT INTO t VALUES (1, 1, 1, 1, '1', 1, 1);
        INSERT INTO t VALUES (1, 2, 2, 2, '2', CAST(NULL AS INT), 2);
        -- older, and still added
        INSERT INTO t VALUES (1, 3, 3, 2, '3', 3, 1);
        SELECT * FROM t
        """,
        [(1, 6, 3, 2, "3", 3, 2)],
    ),
    "default function": (
        """
        CREATE TABLE t (k INT, a INT, b INT, c INT, d INT, PRIMARY KEY (k) NOT ENFORCED) WITH (
          'merge-engine' = 'partial-update',
          'fields.a.sequence-group' = 'b',
          'fields.c.sequence-group' = 'd',
          'fields.default-aggregate-function' = 'last_non_null_value',
          'fields.d.aggregate-function' = 'sum'
        );
        INSERT INTO t VALUES (1, 1, 1, CAST(NULL AS INT), CAST(NULL AS INT));
        INSERT INTO t VALUES (1, CAST(NULL AS INT), CAST(NULL AS INT), 1, 1);
        INSERT INTO t VALUES (1, 2, 2, CAST(NULL AS INT), CAST(NULL AS INT));
        INSERT INTO t VALUES (1, CAST(NULL AS INT), CAST(NULL AS INT), 2, 2);
        SELECT * FROM t
        """,
        [(1, 2, 2, 2, 3)],
    ),
    "default value": (
        """
        CREATE TABLE t (k INT, a INT, b INT, c INT, PRIMARY KEY (k) NOT ENFORCED) WITH (
          'merge-engine' = 'partial-update', 'fields.b.default-value' = '0'
        );
        INSERT INTO t VALUES (1, 1, null, null);
        INSERT INTO t VALUES (1, null, null, 1);
        SELECT * FROM t WHERE b = 0
        """,
        [(1, 1, 0, 1)],
    ),
    "nested update": (
        """
        CREATE TABLE wide (
          order_id BIGINT PRIMARY KEY NOT ENFORCED,
          user_name STRING,
          address STRING,
          sub_orders ARRAY<ROW<daily_id INT, today STRING, product_name STRING, price BIGINT>>
        ) WITH (
          'merge-engine' = 'aggregation',
          'fields.sub_orders.aggregate-function' = 'nested_update',
          'fields.sub_orders.nested-key' = 'daily_id,today'
        );
        INSERT INTO wide VALUES (1, 'Wang', 'HangZhou', CAST(NULL AS
          ARRAY<ROW<daily_id INT, today STRING, product_name STRING, price BIGINT>>));
        INSERT INTO wide (order_id, sub_orders) VALUES (1, ARRAY[ROW(1, '12-20', 'Apple', 8000)]);
        INSERT INTO wide (order_id, sub_orders) VALUES (1, ARRAY[ROW(2, '12-20', 'Tesla', 400000)]);
        INSERT INTO wide (order_id, sub_orders) VALUES (1, ARRAY[ROW(1, '12-20', 'Samsung', 5000)]);
        SELECT s.daily_id, s.product_name, s.price, user_name
        FROM (SELECT user_name, explode(sub_orders) AS s FROM wide)
        """,
        [(1, "Samsung", 5000, "Wang"), (2, "Tesla", 400000, "Wang")],
    ),
    "nested update from two tables": (
        """
        CREATE TABLE orders (
          order_id BIGINT PRIMARY KEY NOT ENFORCED, user_name STRING, address STRING
        );
        CREATE TABLE sub_orders (
          order_id BIGINT, sub_order_id INT, product_name STRING, price BIGINT,
          PRIMARY KEY (order_id, sub_order_id) NOT ENFORCED
        );
        CREATE TABLE order_wide (
          order_id BIGINT PRIMARY KEY NOT ENFORCED,
          user_name STRING,
          address STRING,
          sub_orders ARRAY<ROW<sub_order_id BIGINT, product_name STRING, price BIGINT>>
        ) WITH (
          'merge-engine' = 'aggregation',
          'fields.sub_orders.aggregate-function' = 'nested-update',
          'fields.sub_orders.nested-key' = 'sub_order_id',
          'fields.user_name.aggregate-function' = 'last_value',
          'fields.address.aggregate-function' = 'last_value'
        );
        INSERT INTO orders VALUES (1, 'Wang', 'HangZhou');
        INSERT INTO sub_orders VALUES (1, 1, 'Apple', 8000), (1, 2, 'Tesla', 400000);

        INSERT INTO order_wide
        SELECT
          order_id,
          user_name,
          address,
          CAST(NULL AS ARRAY<ROW<sub_order_id BIGINT, product_name STRING, price BIGINT>>)
        FROM orders
        UNION ALL
        SELECT
          order_id,
          CAST(NULL AS STRING),
          CAST(NULL AS STRING),
          ARRAY[ROW(sub_order_id, product_name, price)]
        FROM sub_orders;

        SELECT order_id, user_name, address, sub_order_id, product_name, price
        FROM order_wide, UNNEST(sub_orders) AS so(sub_order_id, product_name, price)
        """,
        [
            (1, None, None, 1, "Apple", 8000),
            (1, None, None, 2, "Tesla", 400000),
        ],
    ),
    "price and sales": (
        """
        CREATE TABLE t (
          product_id BIGINT, price DOUBLE, sales BIGINT, PRIMARY KEY (product_id) NOT ENFORCED
        ) WITH (
          'merge-engine' = 'aggregation',
          'fields.price.aggregate-function' = 'max',
          'fields.sales.aggregate-function' = 'sum'
        );
        INSERT INTO t VALUES (1, 23.0, 15);
        INSERT INTO t VALUES (1, 30.2, 20);
        SELECT * FROM t
        """,
        [(1, 30.2, 35)],
    ),
}
BY_NAME = pytest.mark.parametrize("example", EXAMPLES, ids=lambda name: name.replace(" ", "-"))


@pytest.mark.one_in(14)
@BY_NAME
def test_example_gives_the_published_rows(example: str, warehouse: str) -> None:
    text, expected = EXAMPLES[example]
    assert rows(kt.connect(warehouse).sql(text)) == expected


@pytest.mark.one_in(14)
@pytest.mark.spark
@BY_NAME
def test_example_gives_the_published_rows_on_spark(
    example: str, warehouse: str, spark: SparkSession
) -> None:
    text, expected = EXAMPLES[example]
    result = kt.connect(warehouse, spark=spark).sql(text)
    assert rows(result) == expected
    assert sorted(tuple(row) for row in result.to_spark().collect()) == expected
