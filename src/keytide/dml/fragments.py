"""Fragments: the results of page sources and merge sinks for `finish_...`, as bytes.

A fragment is an Arrow IPC stream of one table, whose schema contains facts as JSON. Facts and rows
belong to the connector. This module adds a version, the split and the attempt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa

from keytide.dml.spi import Fragment
from keytide.errors import ConnectorError

__all__ = ["Told", "new_attempt", "read_fragments", "write_fragment"]

VERSION = 1
_KEY = b"keytide.fragment"


@dataclass(frozen=True)
class Told:
    """The content of one fragment: split, attempt, facts and rows."""

    split: int
    attempt: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: pa.Table = field(default_factory=lambda: pa.table({}))


def new_attempt() -> str:
    """A unique name for an attempt at a split."""
    return uuid4().hex


def write_fragment(told: Told) -> Fragment:
    """A fragment with this content. Facts must be JSON values."""
    header = {
        "version": VERSION, "split": told.split, "attempt": told.attempt, "facts": told.facts,
    }  # fmt: skip
    table = told.rows.replace_schema_metadata({_KEY: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_fragments(fragments: Iterable[Fragment]) -> list[Told]:
    """The content of fragments, one attempt for each split, in the order of the splits.

    If a split was processed twice, only the first attempt is used, as a whole. A duplicate fragment
    also counts once. Raises `ConnectorError` for bytes that are not a fragment of this version.
    """
    taken: dict[int, str] = {}
    found = [
        told
        for told in map(_read, dict.fromkeys(fragments))
        if taken.setdefault(told.split, told.attempt) == told.attempt
    ]
    return sorted(found, key=lambda told: told.split)


def _read(fragment: Fragment) -> Told:
    try:
        with pa.ipc.open_stream(fragment) as reader:
            rows = reader.read_all()
        header = json.loads(rows.schema.metadata[_KEY])
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ConnectorError(
            f"a fragment of {len(fragment)} bytes was not created by `write_fragment`: {error}"
        ) from error
    if header["version"] != VERSION:
        raise ConnectorError(
            f"a fragment has version {header['version']}, but this release reads {VERSION}: use "
            "the same release of Keytide on the driver and on all workers"
        )
    return Told(header["split"], header["attempt"], header["facts"], rows.replace_schema_metadata())
