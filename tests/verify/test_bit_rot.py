"""Bits that change in a stored file: a read gives the right rows, or an error that names a file."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from keytide.store import LocalStore, Store
from new_tables import table_in

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.float64()),
        ("s", pa.string()),
        ("d", pa.dictionary(pa.int8(), pa.string())),
        ("ns", pa.timestamp("ns")),
        ("l", pa.list_(pa.int32())),
    ]
)
FLIPS = 40


class Remote(LocalStore):
    """Files on local disk, read as those of an object store are."""

    def local_path(self, path: str) -> None:  # type: ignore[override]
        """None."""


def new_rows(count: int, seed: int) -> pa.Table:
    """Columns of every encoding: plain, with a dictionary, nested, INT96."""
    dice = random.Random(seed)
    return pa.table(
        {
            "k": list(range(count)),
            "v": [dice.random() for _ in range(count)],
            "s": [f"{dice.random()}" for _ in range(count)],
            "d": [f"few {i % 3}" for i in range(count)],
            "ns": [dice.randrange(10**18) for _ in range(count)],
            "l": [[i, i + 1] for i in range(count)],
        },
        schema=pa.schema([f if f.name != "d" else f.with_type(pa.string()) for f in SCHEMA]),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two overlapping runs, so that reads merge."""
    folder = tmp_path_factory.mktemp("rot")
    table = kt.connect(folder).create_table("t", SCHEMA, ["k"])
    table.write(new_rows(3_000, 1))
    table.write(new_rows(1_000, 2))
    return folder


def read(store: Store) -> pa.Table:
    return table_in(store).scan().to_arrow().sort_by("k")


FILES = {
    "data": "**/*.parquet",
    "manifest": "**/manifest-[0-9a-f]*-[0-9]*",
    "manifest list": "**/manifest-list-*",
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("store_class", [LocalStore, Remote], ids=["local", "remote"])
@pytest.mark.parametrize("kind", FILES)
def test_changed_bits_are_told_with_the_file_or_change_no_row(
    kind: str, store_class: type[LocalStore], written: Path, tmp_path: Path
) -> None:
    dice = random.Random(kind)
    expected = read(LocalStore(str(written)))
    seen = 0
    for number in range(FLIPS):
        copy = tmp_path / str(number)
        shutil.copytree(written, copy)
        file = dice.choice(sorted(copy.glob(FILES[kind])))
        changed = bytearray(file.read_bytes())
        for _ in range(dice.choice([1, 1, 2, 5])):
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        file.write_bytes(changed)
        refused: kt.KeytideError | None = None
        try:
            assert read(store_class(str(copy))).equals(expected)
        except kt.KeytideError as error:
            refused = error
        if refused is not None:
            assert file.name in str(refused)
            seen += 1
        shutil.rmtree(copy)
    assert seen > FLIPS // 3  # the other files belong to older snapshots


WORDS = {"data": b"parquet-cpp-arrow", "manifest": b"paimon"}
"""Names in a file of each kind that no reader looks at."""

LOOKALIKES = [
    "keytide-crc32:00000000",
    "keytide.seal,keytide-crc32:deadbeef",
    "keytide.seal\x18\x16keytide-crc32:deadbeef",
    "keytide-crc32s:;",
    "keytide.blocks\x18\x0fkeytide-crc32s:deadbeef;",
    "keytide.blocks\x18\x10keytide-crc32s:;",
]


@pytest.mark.parametrize("text", LOOKALIKES)
@pytest.mark.parametrize("kind", ["data", "manifest"])
def test_rows_that_look_like_a_checksum_are_read_and_checked_like_others(
    kind: str, text: str, tmp_path: Path
) -> None:
    row = {"p": text, "k": text, text: text}
    schema = pa.schema([(name, pa.string()) for name in row])
    lake = kt.connect(tmp_path / "whole")
    lake.create_table("t", schema, ["p", "k"], partition_by=["p"]).write([row])

    assert lake.table("t").scan(where="k > ''").to_pylist() == [row]

    shutil.copytree(tmp_path / "whole", tmp_path / "torn")
    (file,) = (tmp_path / "torn").glob(FILES[kind])
    _flip(file, file.read_bytes().index(WORDS[kind]))
    with pytest.raises(kt.DataError, match=file.name):
        kt.connect(tmp_path / "torn").table("t").scan().to_pylist()


def test_a_changed_bit_is_told_in_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    count = 200_000  # in several blocks
    dice = random.Random(7)
    rows = pa.table({"k": range(count), "a.b": [dice.random() for _ in range(count)]})
    kt.connect(tmp_path).create_table("t", rows.schema, ["k"]).write(rows)
    for file in tmp_path.glob("**/*.parquet"):
        chunk = pq.read_metadata(file).row_group(0).column(4)
        assert chunk.path_in_schema == "a.b"
        _flip(file, chunk.data_page_offset + chunk.total_compressed_size // 2)

    with pytest.raises(kt.DataError, match="checksum does not match"):
        kt.connect(tmp_path).table("t").scan(columns=["a.b"]).to_arrow()


def _flip(file: Path, place: int) -> None:
    changed = bytearray(file.read_bytes())
    changed[place] ^= 1
    file.write_bytes(changed)
