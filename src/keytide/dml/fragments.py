"""Fragments: what page sources and merge sinks tell their connector's `finish_...`, as bytes.

A fragment is an Arrow IPC stream of one table, whose schema carries the facts as JSON. Facts and
rows are the connector's own; this module adds a version, the split and the attempt.
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
    """What one fragment tells: of which split, by which attempt at it, facts, and rows."""

    split: int
    attempt: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: pa.Table = field(default_factory=lambda: pa.table({}))


def new_attempt() -> str:
    """A name for an attempt at a split, which no other attempt has."""
    return uuid4().hex


def write_fragment(told: Told) -> Fragment:
    """A fragment that tells this. Facts are what JSON can say."""
    header = {
        "version": VERSION, "split": told.split, "attempt": told.attempt, "facts": told.facts,
    }  # fmt: skip
    table = told.rows.replace_schema_metadata({_KEY: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_fragments(fragments: Iterable[Fragment]) -> list[Told]:
    """What fragments tell, one attempt for each split, in the order of the splits.

    A split that was worked on twice counts once: the attempt that comes first is taken, whole. So
    does a fragment that comes twice.
    Raises `ConnectorError` for bytes that are no fragment of this version.
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
            f"a fragment of {len(fragment)} bytes is none that `write_fragment` made: {error}"
        ) from error
    if header["version"] != VERSION:
        raise ConnectorError(
            f"a fragment has version {header['version']}; this release reads {VERSION}: run the "
            f"same release of Keytide on the driver and on all workers"
        )
    return Told(header["split"], header["attempt"], header["facts"], rows.replace_schema_metadata())
