"""Tables as views in a DuckDB connection of the caller.

DuckDB's own Parquet reader reads files that need no merge. All other rows come through a dataset,
to which DuckDB pushes the columns and conditions of a query.

>>> con = duckdb.connect()                                              # doctest: +SKIP
>>> kt.duckdb.register(con, lake)                                       # doctest: +SKIP
>>> con.sql("SELECT status, count(*) FROM shop.orders GROUP BY ALL")    # doctest: +SKIP
"""

from keytide.duckdb.register import register

__all__ = ["register"]
