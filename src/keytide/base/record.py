"""Records as rows of an Arrow table, and as the table that a notebook shows.

>>> @dataclass(frozen=True)
... class Done(Record):
...     snapshot_id: int | None
...     tags: tuple[str, ...]
>>> Done(3, ("a", "b")).to_arrow().to_pylist()
[{'snapshot_id': 3, 'tags': 'a, b'}]

All text in the HTML is escaped.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

import pyarrow as pa

from keytide.base.dataclass import dataclass, fields

# -- HTML for notebooks ----------------------------------------------------------------------------


def heading(title: str, address: str) -> str:
    """A title with an address."""
    return f"<b>{escape(title)}</b> <code>{escape(address)}</code>"


def bullets(items: Iterable[str]) -> str:
    """An unordered list."""
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a header row."""
    names = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    cells = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{names}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def preformatted(text: str) -> str:
    """Text that keeps its spaces and line breaks."""
    return f"<pre>{escape(text)}</pre>"


# -- records as rows -------------------------------------------------------------------------------


_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.string(),
    datetime: pa.timestamp("ms", "UTC"),
    Mapping[str, int]: pa.map_(pa.string(), pa.int64()),
}


@dataclass(frozen=True)
class Record:
    """Base class of results. The fields are the columns of one row.

    A field with several strings becomes one string with commas between them.
    """

    @classmethod
    def columns(cls) -> pa.Schema:
        """The columns of the row."""
        return _columns(cls)

    def to_arrow(self) -> pa.Table:
        """The result as a table with one row."""
        return pa.Table.from_pylist([_record_row(self, self.columns())], schema=self.columns())

    def _repr_html_(self) -> str:
        row = _record_row(self, self.columns())
        return table([*row], [[*row.values()]])


def rows_of(kind: type, records: Iterable[Any]) -> pa.Table:
    """Instances of a dataclass as rows."""
    columns = _columns(kind)
    return pa.Table.from_pylist([_record_row(each, columns) for each in records], schema=columns)


def _columns(kind: type) -> pa.Schema:
    """The fields of a dataclass as nullable columns."""
    hints = typing.get_type_hints(kind)
    # For an optional type or a tuple, the first type argument decides.
    types = {name: (typing.get_args(hint) or (hint,))[0] for name, hint in hints.items()}
    return pa.schema([(member.name, _TYPES[types[member.name]]) for member in fields(kind)])


def _record_row(record: Any, columns: pa.Schema) -> dict[str, Any]:
    row = {}
    for name in columns.names:
        value = getattr(record, name)
        if isinstance(value, Mapping):
            value = [*value.items()]
        elif isinstance(value, tuple):
            value = ", ".join(value)
        row[name] = value
    return row
