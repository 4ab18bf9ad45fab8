"""CHECK without a name in CREATE TABLE: named as PostgreSQL does."""

from __future__ import annotations

import pytest

import keytide as kt


def checks(lake: kt.Lake, table: str) -> dict[str, str]:
    options = lake.table(table).options
    return {k.removeprefix("constraint."): v for k, v in options.items() if "constraint." in k}


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ("CHECK (v < 10)", {"t_v_check": "v < 10"}),
        ("CHECK (v < 10), CHECK (V > 0)", {"t_v_check": "v < 10", "t_V_check": "V > 0"}),
        ("CHECK (v < 10), CHECK (v > 0)", {"t_v_check": "v < 10", "t_v_check1": "v > 0"}),
        ("CHECK (v < n)", {"t_check": "v < n"}),
        (
            "CHECK (v < n), CHECK (n = 9 OR v = 9)",
            {"t_check": "v < n", "t_check1": "n = 9 OR v = 9"},
        ),
        ("CONSTRAINT t_v_check CHECK (v > 0), CHECK (v < 10)",
         {"t_v_check": "v > 0", "t_v_check1": "v < 10"}),
        ("w INT CHECK (w < 10) NOT NULL", {"t_w_check": "w < 10"}),
        ("w INT DEFAULT 1 CHECK (w < 10) COMMENT 'x'", {"t_w_check": "w < 10"}),
        ("w INT CONSTRAINT small CHECK (w < 10)", {"small": "w < 10"}),
        ("w INT CHECK (w < 10) CHECK ((w) > v)", {"t_w_check": "w < 10", "t_check": "(w) > v"}),
        ("`check` INT, CHECK (`check` > 0)", {"t_check_check": "`check` > 0"}),
        ("check INT", {}),
    ],
)  # fmt: skip
def test_each_has_the_name_that_postgresql_gives_it(
    warehouse: str, elements: str, expected: dict[str, str]
) -> None:
    lake = kt.connect(warehouse)
    lake.sql(f"CREATE TABLE db.t (id INT, v INT, n INT, {elements}, PRIMARY KEY (id) NOT ENFORCED)")
    assert checks(lake, "db.t") == expected


def test_rows_that_fail_are_refused_by_the_name(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE t (id INT, v INT CHECK (v < 10), PRIMARY KEY (id) NOT ENFORCED)")
    with pytest.raises(kt.InvalidError, match="t_v_check"):
        lake.sql("INSERT INTO t VALUES (1, 10)")
    lake.sql("ALTER TABLE t DROP CONSTRAINT t_v_check; INSERT INTO t VALUES (1, 10)")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (id INT, CHECK ())",
        "CREATE TABLE t (id INT, CHECK (nope > 1))",
        "CREATE TABLE t (id INT, CHECK (id >))",
        "CREATE TABLE t (id INT, CHECK id > 1)",
        "CREATE TABLE t (id INT, CONSTRAINT x)",
        "CREATE TABLE t (id INT CONSTRAINT x)",
        "CREATE TABLE t (id INT CONSTRAINT x PRIMARY KEY)",
        "CREATE EXTERNAL TABLE t (id INT, CHECK (id > 1)) USING parquet LOCATION '{tmp}'",
        "ALTER TABLE o ADD COLUMN w INT CHECK (w > 1)",
    ],
)
def test_what_is_no_constraint_is_refused(warehouse: str, statement: str) -> None:
    lake = kt.connect(warehouse, allow_external_files=True)
    lake.sql("CREATE TABLE o (id INT)")
    with pytest.raises(kt.KeytideError):
        lake.sql(statement.replace("{tmp}", warehouse))
    assert lake.tables() == ["default.o"]
