"""The one interface of the merge engines, and the engine of a table.

An engine is a law about versions: `merge` of all versions at once, or run by run, or after any
partial compaction gives the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import polars as pl

from keytide.errors import UnsupportedError
from keytide.merge.aggregation import aggregation
from keytide.merge.deduplicate import Deduplicate
from keytide.merge.first_row import FirstRow
from keytide.merge.functions.registry import NO_FUNCTIONS
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import MergeOrder
from keytide.merge.partial_update import partial_update
from keytide.merge.refusal import Refusal
from keytide.merge.slices import Marks
from keytide.options import TableOptions
from keytide.types import Field

__all__ = ["MergeEngine", "engine_of", "order_of"]


class MergeEngine(Protocol):
    """Folds the versions of each key into one row."""

    @property
    def newest_decides(self) -> bool:
        """Whether the row of a key is its newest arrival, whatever came before."""
        ...

    @property
    def picks_a_version(self) -> bool:
        """Whether the row of a key is one of its versions as it stands, not put together."""
        ...

    @property
    def way_out(self) -> str:
        """What works although stored versions of a key cannot be merged, for people."""
        ...

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Table columns to read so that the `wanted` ones can be merged (keys come anyway)."""
        ...

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """Incoming rows that could not be merged once their key has another version.

        What is not refused can be merged with whatever was not refused before it, unless a
        result becomes too large for its column. REQUIRES: `rows` have all columns of the table
        and `_VALUE_KIND`.
        """
        ...

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """One row per key of `versions`, with the columns of `versions`.

        Rows come in key order, unless `in_key_order` is false and another order is cheaper.
        A lone version is its key's row as it stands, so that keys which occur once need not be
        merged. A key whose versions are all ignored has no row.

        REQUIRES: `versions` is sorted by the table's `MergeOrder` and has `_SEQUENCE_NUMBER` and
        `_VALUE_KIND`. A key whose outcome is a deletion keeps a row of kind -D or -U, so that
        the result can stand for its versions in a later merge; readers drop such rows.
        """
        ...

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """The versions that must not be merged with those of their key before them, if any.

        So it is where the merged row would not do to older versions, which are not at hand, what
        the versions do one by one. The first version of a key is never marked, and marks behind
        the first one of a key are preliminary: they hold for a merge that begins with the key's
        first version. REQUIRES what `merge` requires.
        """
        ...


def order_of(key: tuple[str, ...], fields: Iterable[Field], options: TableOptions) -> MergeOrder:
    """The merge order that a table's options state."""
    chars = {f.name for f in fields if getattr(f.type, "root", "") == "CHAR"}
    return MergeOrder(
        key=key,
        sequence=options.sequence_field,
        descending=options.sequence_sort_order == "descending",
        padded=frozenset(chars & set(options.sequence_field)),
    )


def engine_of(
    order: MergeOrder,
    fields: tuple[Field, ...],
    options: TableOptions,
    *,
    partition_keys: tuple[str, ...] = (),
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> MergeEngine:
    """The engine that a table's options name; `functions` are users' merge functions.

    Partition columns, which are the same in all versions of a key, are never merged.
    Raises `UnsupportedError` naming the engine when this release has no kernel for it.
    """
    make = _ENGINES.get(options.merge_engine)
    if make is None:
        raise UnsupportedError(
            f"merge engine {options.merge_engine!r} cannot be merged by this release; "
            f"it can merge {', '.join(sorted(_ENGINES))}"
        )
    return make(order, tuple(f for f in fields if f.name not in partition_keys), options, functions)


_Factory = Callable[
    [MergeOrder, tuple[Field, ...], TableOptions, Mapping[str, MergeFunction]], MergeEngine
]
_ENGINES: dict[str, _Factory] = {
    "aggregation": aggregation,
    "deduplicate": lambda order, _, options, __: Deduplicate(order, options.ignore_delete),
    "first-row": lambda order, _, options, __: FirstRow(order, options.ignore_delete),
    "partial-update": partial_update,
}
