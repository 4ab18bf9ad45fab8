"""Changed rows as a table: one line for each change, with the old value next to the new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keytide.base.plural import counted
from keytide.show.cells import Cell
from keytide.show.changed_rows import ChangedRow, ChangedRows
from keytide.show.markup import Markup, element, joined
from keytide.show.parts import cell, named, paragraph, rows_table

__all__ = ["changes_table"]

_COLUMNS_MAX = 25
_KINDS = {
    "+I": ("insert", "insert"),
    "-D": ("delete", "delete"),
    "-U": ("update, before", "before"),
    "+U": ("update, after", "after"),
}


@dataclass(frozen=True)
class _Line:
    """A change: one row or, for an update, the before and after image."""

    rows: tuple[ChangedRow, ...]

    @property
    def is_update(self) -> bool:
        return len(self.rows) == 2


def changes_table(found: ChangedRows) -> Markup:
    """The first changes, with the number of changes of each kind.

    An update is one line. A changed value is shown as the value before, an arrow, and the value
    after.
    """
    counts = ", ".join(f"{kind} {number:,}" for kind, number in found.counts)
    shown = (
        f"The first {counted(len(found.rows), 'changed row')}; there are more. By kind: {counts}"
    )
    if not found.rows:
        return paragraph("No row changed.")
    if not found.has_more:
        shown = f"{counted(len(found.rows), 'changed row')}. By kind: {counts}"
    left_out = len(found.columns) - _COLUMNS_MAX
    columns = found.columns[:_COLUMNS_MAX]
    table = rows_table(
        "Changed rows",
        ("Change", *(named(column.name) for column in columns)),
        map(_cells, _lines(found.rows)),
        class_="rows changes",
    )
    more = paragraph(f"{counted(left_out, 'more column')}", class_="muted") if left_out > 0 else ""
    return joined(paragraph(shown), table, more)


def _lines(rows: Sequence[ChangedRow]) -> Iterator[_Line]:
    """The rows, with the two adjacent images of an update together."""
    before: ChangedRow | None = None
    for row in rows:
        if before is not None and row.kind == "+U":
            yield _Line((before, row))
            before = None
            continue
        if before is not None:
            yield _Line((before,))
        before = row if row.kind == "-U" else None
        if before is None:
            yield _Line((row,))
    if before is not None:
        yield _Line((before,))


def _cells(line: _Line) -> tuple[str, ...]:
    if not line.is_update:
        (row,) = line.rows
        return _kind(*_KINDS[row.kind], row.kind), *map(cell, row.cells[:_COLUMNS_MAX])
    before, after = line.rows
    pairs = zip(before.cells[:_COLUMNS_MAX], after.cells, after.is_new, strict=False)
    return _kind("update", "after", "-U +U"), *(_value(*pair) for pair in pairs)


def _value(before: Cell, after: Cell, is_new: bool) -> Markup:  # a cell's own
    if not is_new:
        return cell(after)
    arrow = element("span", " → ", aria_label=" becomes ", role="img")
    return element(
        "span", element("del", cell(before)), arrow, element("ins", cell(after)), class_="differs"
    )


def _kind(word: str, class_: str, sign: str) -> Markup:
    return joined(element("span", sign, class_=f"kind kind-{class_}"), f" {word}")
