"""A feed of a simulated source into a table, which must have the rows of the source."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pyarrow as pa

import keytide as kt
from keytide import cdc
from keytide.types import Field, parse_sql_type
from simulated_source import TOOLS, Row, Source

__all__ = ["check"]

COLUMNS = tuple(
    Field(-1, name, parse_sql_type(type))
    for name, type in {"id": "BIGINT NOT NULL", "v": "STRING", "big": "STRING"}.items()
)


def check(tool: str, seed: int, length: int = 12) -> None:
    """Feed one history in its order, then shuffled, in batches of any size."""
    random = Random(seed)
    source = Source(random, length)
    format, write = TOOLS[tool]
    messages = write(source, random)
    if not messages:
        return
    expected = sorted(source.rows.values(), key=lambda row: row["id"])
    shuffled = random.sample(messages, len(messages))
    for arrived in (messages, shuffled):
        found = fed(format, messages, _batches(random, arrived))
        assert found == expected, (tool, seed, "in order" if arrived is messages else "shuffled")


def fed(format: str, sample: Sequence[str], batches: Sequence[Sequence[str]]) -> list[Row]:
    """The rows of a table after it took the batches one by one."""
    sequence = cdc.default_sequence(pa.array(sample), format)
    columns = (*COLUMNS, *(source.to_field() for source in sequence))
    spec = cdc.FeedSpec(format, columns, ("id",), sequence)
    folder = tempfile.mkdtemp()
    try:
        lake = kt.connect(folder)
        for batch in batches:
            decoded = cdc.decode(pa.array(batch), spec)
            assert decoded.rejected.num_rows == 0, decoded.rejected["reason"].to_pylist()
            lake.auto_cdc("t", decoded.rows, keys="id", sequence_by=[s.column for s in sequence])
        return lake.table("t").scan(["id", "v", "big"]).to_polars().sort("id").to_dicts()
    finally:
        shutil.rmtree(folder)


def _batches(random: Random, messages: Sequence[str]) -> list[Sequence[str]]:
    cuts = sorted(random.randint(0, len(messages)) for _ in range(random.randint(0, 3)))
    bounds = [0, *cuts, len(messages)]
    return [messages[a:b] for a, b in pairwise(bounds) if a < b]
