"""Entries that are read as columns are those that are read one by one."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Sequence
from typing import TypeVar

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.format.checksum import HEADER_SEAL, SEAL_KEY, UNSEALED
from keytide.format.manifest import copy_manifest, decode_manifest, encode_manifest, open_manifests
from keytide.format.manifest_entry import DataFileMeta, Entries, FileKind, ManifestEntry
from keytide.format.stats import SimpleStats

T = TypeVar("T")
MILLISECONDS = st.integers(-(2**40), 2**45)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
BYTES = st.binary(max_size=9)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)


def tuples(items: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(items, max_size=3).map(tuple)


def perhaps(values: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | values


STATS = st.builds(SimpleStats, BYTES, BYTES, perhaps(tuples(perhaps(LONGS))))
FILES = st.builds(
    DataFileMeta,
    *(TEXTS, LONGS, LONGS, BYTES, BYTES, STATS, STATS, LONGS, LONGS, LONGS, INTS),
    *(tuples(TEXTS), perhaps(MILLISECONDS), perhaps(LONGS), perhaps(BYTES), perhaps(INTS)),
    *(perhaps(tuples(TEXTS)), perhaps(TEXTS), perhaps(LONGS), perhaps(tuples(TEXTS))),
)
ENTRIES = st.builds(ManifestEntry, st.sampled_from(FileKind), BYTES, INTS, INTS, FILES)


Writer = Callable[[Sequence[ManifestEntry]], bytes]


def by_another(entries: Sequence[ManifestEntry]) -> bytes:
    """A manifest that passes as another writer's: a key as long as the seal's is nobody's."""
    return encode_manifest(entries).replace(SEAL_KEY.encode(), SEAL_KEY.upper().encode(), 1)


def with_another_header(entries: Sequence[ManifestEntry]) -> bytes:
    """A sealed manifest whose header has one more text, as a later release may write it."""
    own = encode_manifest(entries)
    records = list(fastavro.reader(io.BytesIO(own)))
    schema = fastavro.reader(io.BytesIO(own)).writer_schema
    file = io.BytesIO()
    metadata = {SEAL_KEY: UNSEALED, "later": "x"}
    fastavro.writer(file, schema, records, codec="deflate", metadata=metadata)
    return HEADER_SEAL.set(file.getvalue())


def copied(entries: Sequence[ManifestEntry]) -> bytes:
    [opened] = open_manifests([(encode_manifest(entries), "m", None)])
    return copy_manifest(opened)


WRITERS: list[Writer] = [encode_manifest, by_another, with_another_header, copied]


@given(st.lists(ENTRIES, max_size=5))
def test_entries_of_a_sealed_manifest_are_those_of_the_same_bytes_without_a_seal(
    entries: list[ManifestEntry],
) -> None:
    sealed = encode_manifest(entries)
    # A key of the same length, which is nobody's: the file passes as another writer's.
    foreign = sealed.replace(SEAL_KEY.encode(), SEAL_KEY.upper().encode(), 1)
    assert decode_manifest(sealed, "m") == entries
    assert decode_manifest(foreign, "m") == entries


@given(st.lists(st.tuples(st.lists(ENTRIES, max_size=3), st.sampled_from(WRITERS)), max_size=5))
def test_manifests_opened_together_have_the_entries_of_each(
    written: list[tuple[list[ManifestEntry], Writer]],
) -> None:
    files = [(write(entries), f"m{n}", None) for n, (entries, write) in enumerate(written)]
    opened = open_manifests(files)
    assert [list(decode_manifest(copy_manifest(each), "m")) for each in opened] == [
        entries for entries, _ in written
    ]
    assert [Entries.stored(each.columns) for each in opened] == [entries for entries, _ in written]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_reading_leaves_garbage_collection_as_it_was(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        decode_manifest(encode_manifest([]), "m")
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
