"""Damaged files: bits flipped, ends cut off. A read raises Keytide's error or gives right rows.

Schemas and snapshots are plain JSON without checksums, so what one of them says after a change may
be another table; of those only the kind of error counts.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fuzz_case import Case, Refused, brief

import keytide as kt

__all__ = ["run"]


def run(case: Case) -> None:
    """A table of some commits, and one file after the other damaged in a copy of it."""
    whole = case.folder / "whole"
    rows = _written(case, whole)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    for i in range(6):
        copy = case.folder / f"copy{i}"
        shutil.copytree(whole, copy)
        file = case.chance.choice(files)
        told = f"{_damage(case, copy / file)} of {file}"
        found = case.attempt(told, lambda copy=copy: _rows(copy), harmed=True)
        plain = file.parent.name in ("schema", "snapshot")
        if not plain and not isinstance(found, Refused) and found != rows:
            kind = "/".join(part.split("-")[0] for part in file.parts[2:])
            case.note("rows", f"damage in {kind}", f"{told}: {brief(found)}, not {brief(rows)}")
        case.attempt(f"write after {told}", lambda copy=copy: _write(copy), harmed=True)
        shutil.rmtree(copy)


def _written(case: Case, folder: Path) -> Any:
    lake = kt.connect(folder)
    partitioned = case.often(0.4)
    columns = "k INT, p STRING, v STRING, n DOUBLE, a ARRAY<INT>"
    fields = [
        kt.Field(-1, name, kt.parse_sql_type(kind))
        for name, kind in (column.split(" ", 1) for column in columns.split(", "))
    ]
    table = lake.create_table(
        "t", fields, ["k", "p"] if partitioned else ["k"], ["p"] if partitioned else [],
        options={"bucket": case.chance.choice("12")},
    )  # fmt: skip
    for _ in range(case.chance.choice([1, 3])):
        table.write(
            [
                {"k": k, "p": case.chance.choice("ab"), "n": case.chance.random(), "a": [k],
                 "v": case.chance.choice(["x", "y" * 50, None]),
                 "_row_kind": case.chance.choice(["+I", "+I", "-D"])}
                for k in range(case.chance.choice([1, 5, 200]))
            ]
        )  # fmt: skip
    return _rows(folder)


def _rows(folder: Path) -> Any:
    rows = kt.connect(folder).table("t").scan().to_pylist()
    return sorted(repr(row) for row in rows)


def _write(folder: Path) -> None:
    table = kt.connect(folder).table("t")
    table.write([{"k": 1, "p": "a", "v": "z", "n": 0.5, "a": []}])
    table.scan().count()


def _damage(case: Case, path: Path) -> str:
    data = bytearray(path.read_bytes())
    how = case.chance.choice(["bits", "bits", "cut", "gone", "more", "zeros", "empty"])
    if how == "gone":
        path.unlink()
        return "loss"
    place = case.chance.randrange(len(data)) if data else 0
    if how == "bits" and data:
        for _ in range(case.chance.choice([1, 1, 4])):
            data[case.chance.randrange(len(data))] ^= 1 << case.chance.randrange(8)
    elif how == "zeros":
        data[place : place + 16] = bytes(len(data[place : place + 16]))
    elif how == "cut":
        del data[place:]
    else:
        data = data + b"\0x" if how == "more" else bytearray()
    path.write_bytes(data)
    return f"{how} at {place}"
