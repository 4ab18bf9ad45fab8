"""Footers of other writers have no seal: a damaged one is refused, and never ends the process."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keytide.format.checksum import byte_ranges
from keytide.format.data_file.parquet import read_footer

FLIPS = 1_000  # of each process


def stored(seed: int = 0) -> bytes:
    """A file with columns of all shapes; its row groups have statistics of all kinds."""
    rng = random.Random(seed)
    numbers = [rng.choice([None, rng.randrange(99)]) for _ in range(200)]
    rows = pa.table(
        {
            "whole": pa.array(numbers, pa.int64()),
            "small": pa.array(numbers, pa.int32()),
            "text": pa.array([None if n is None else f"x{n}" for n in numbers]),
            "list": pa.array([[n, 1] for n in numbers], pa.list_(pa.int32())),
            "struct": pa.array([{"a": n, "b": "b"} for n in numbers]),
            "flag": pa.array([n is None for n in numbers]),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=70)
    return bytes(sink.getvalue())


def look_at_all(data: bytes) -> str:
    """What a reader asks of a footer: where the chunks lie, and the ends of the row groups."""
    try:
        footer = read_footer(pa.BufferReader(data))
        names = [footer.schema.column(i).path.split(".")[0] for i in range(footer.num_columns)]
        byte_ranges(names, 0, None, footer)
        groups = range(footer.num_row_groups)
        chunks = [footer.row_group(g).column(i) for g in groups for i in range(len(names))]
        _ = [(s.has_min_max, s.min, s.max) for s in (c.statistics for c in chunks) if s is not None]
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        return type(error).__name__
    return "read"


def flip_bits(seed: int) -> None:
    """Flip bits of the footer, one at a time; the process lives, or does not."""
    data, rng = stored(), random.Random(seed)
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(FLIPS):
        damaged = bytearray(data)
        damaged[rng.randrange(begin, len(data))] ^= 1 << rng.randrange(8)
        look_at_all(bytes(damaged))


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("seed", range(6))
def test_flipped_bit_of_a_footer_never_ends_the_process(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(seed)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{FLIPS} flips\n"), done.stderr[-2000:]


@pytest.mark.parametrize("seed", range(5))
def test_sound_footer_passes(seed: int) -> None:
    assert look_at_all(stored(seed)) == "read"


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[1].rglob("*.parquet")), ids=lambda path: path.name
)
def test_sample_of_another_writer_passes(path: Path) -> None:
    assert look_at_all(path.read_bytes()) == "read"


if __name__ == "__main__":
    flip_bits(int(sys.argv[1]))
    print(f"{FLIPS} flips")
