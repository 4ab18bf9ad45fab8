"""The blocks about databases show what happens, with a server of PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from databases import SomeDatabase

import keytide as kt
from pages import PAGES, Changed, blocks_of


def test_page_of_sql_joins_and_updates_databases(
    postgres: SomeDatabase, sqlite: SomeDatabase, tmp_path: Path
) -> None:
    postgres.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, customer INT, sku TEXT)",
        "INSERT INTO orders VALUES (1, 7, 'k-1')",
    )
    sqlite.run(
        "CREATE TABLE stock (sku TEXT PRIMARY KEY, qty INTEGER)",
        "INSERT INTO stock VALUES ('k-1', 3), ('k-2', 5)",
    )
    lake = kt.connect(tmp_path / "lake")
    lake.sql("CREATE TABLE customers (id INT, city STRING, PRIMARY KEY (id) NOT ENFORCED)")
    changed = Changed(tmp_path, {
        "postgresql://user@host/shop": postgres.place,
        "sqlite:////data/app.db": f"sqlite:///{sqlite.place}",
    })  # fmt: skip
    mark = "run with PostgreSQL"
    [code] = [block.code for block in blocks_of(PAGES / "sql.md") if block.mark == mark]
    exec(changed(code), {"lake": lake})
    assert sqlite.rows("SELECT sku, qty FROM stock ORDER BY 1") == [("k-1", 2), ("k-2", 5)]
