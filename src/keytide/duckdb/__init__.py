"""Tables as views in a connection of DuckDB that somebody else keeps.

Files that need no merge are read by DuckDB's own Parquet reader; all other rows come through a
dataset, of which DuckDB asks the columns and conditions that a query needs.

>>> con = duckdb.connect()                                              # doctest: +SKIP
>>> kt.duckdb.register(con, lake)                                       # doctest: +SKIP
>>> con.sql("SELECT status, count(*) FROM shop.orders GROUP BY ALL")    # doctest: +SKIP
"""

from keytide.duckdb.register import register

__all__ = ["register"]
