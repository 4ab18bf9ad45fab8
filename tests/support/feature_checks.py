"""What is checked of a table with a feature: read as Java does, or refused by name at each door."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import keytide as kt
from feature_cases import FeatureTable, as_json
from gate_doors import CLEANING, OF_BOTH_BRANCHES, READING, WRITING
from keytide.options.features import Needs

__all__ = ["assert_read_right_or_refused"]


def assert_read_right_or_refused(
    lake: kt.Lake, name: str, case: FeatureTable, expected: list[Any] | None
) -> None:
    """Each door gives Java's rows, or refuses with the name of the feature and changes nothing."""
    table = lake.table(name)
    before = _contents(table)
    with warnings.catch_warnings(action="ignore"):
        _assert_rows(lake, table, case, expected)
        closed = {
            Needs.NOTICE: {},
            Needs.WRITERS: WRITING,
            Needs.CLEANERS: {**CLEANING, **WRITING},
            Needs.READERS: {**READING, **CLEANING, **WRITING},
        }[case.needs]
        open_doors = OF_BOTH_BRANCHES if case.branch_option else ()
        for door, enter in closed.items():
            if door in open_doors:
                continue
            try:
                enter(lake, table)
            except kt.KeytideError as error:
                refused = error
            else:
                raise AssertionError(f"{door} is open")
            # A key of the wrong form, or a table without a key, is refused before.
            if isinstance(refused, kt.UnsupportedError):
                assert case.named in str(refused) or "primary key" in str(refused), door
    assert _contents(table) == before


def _assert_rows(
    lake: kt.Lake, table: kt.Table, case: FeatureTable, expected: list[Any] | None
) -> None:
    if case.needs is Needs.READERS and not case.branch_option:
        return
    assert expected is not None
    assert as_json(table.scan().to_arrow()) == expected
    assert table.scan().count() == len(expected)
    if case.key:
        for row in expected:
            key = tuple(row[name] for name in case.key)
            found = table.get(key if len(key) > 1 else key[0])
            assert as_json_row(found) == row
        read = lake.sql(f"SELECT * FROM {table.name}").to_arrow()
        assert as_json(read) == expected
    if not case.branch_option:
        assert not table.verify().findings


def as_json_row(row: Any) -> Any:
    """A row as `as_json` shows it."""
    return json.loads(json.dumps(row, default=bytes.hex))


def _contents(table: kt.Table) -> dict[Path, int]:
    folder = Path(table.uri.removeprefix("file://"))
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
