"""Makes a table, writes to it and reads it: what most programs have loaded before long."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa

import keytide as kt

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})

with TemporaryDirectory() as folder, kt.connect(folder) as lake:
    table = lake.create_table("t", SCHEMA, ["k"])
    table.write(pl.DataFrame({"k": [1], "v": ["a"]}))
    assert table.scan().to_arrow().num_rows == 1
    assert table.get(1) is not None
