"""The merge engines that there are, and the one of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from keytide.errors import UnsupportedError
from keytide.merge.aggregation import Aggregation
from keytide.merge.deduplicate import Deduplicate
from keytide.merge.engine import MergeEngine
from keytide.merge.first_row import FirstRow
from keytide.merge.functions.registry import NO_FUNCTIONS
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import MergeOrder
from keytide.merge.partial_update import PartialUpdate
from keytide.options import TableOptions
from keytide.types import Field

__all__ = [
    "ENGINES",
    "column_merger",
    "compacts_by_lookup",
    "engine_class",
    "engine_of",
    "engines_with",
]

ENGINES: dict[str, type[MergeEngine]] = {
    "deduplicate": Deduplicate,
    "partial-update": PartialUpdate,
    "aggregation": Aggregation,
    "first-row": FirstRow,
}
"""The engines by the name that a table's options give them."""


def engine_class(options: TableOptions) -> type[MergeEngine]:
    """The engine that a table's options name.

    Raises `UnsupportedError` naming the engine when this release has no kernel for it.
    """
    found = ENGINES.get(options.merge_engine)
    if found is None:
        raise UnsupportedError(
            f"merge engine {options.merge_engine!r} cannot be merged by this release; "
            f"it can merge {', '.join(sorted(ENGINES))}"
        )
    return found


def engines_with(option: str) -> tuple[str, ...]:
    """The names of the engines that an option, by its key in the table, acts on.

    None where it acts on all.
    """
    return tuple(name for name, engine in ENGINES.items() if option in engine.options)


def engine_of(
    order: MergeOrder,
    fields: tuple[Field, ...],
    options: TableOptions,
    *,
    partition_keys: tuple[str, ...] = (),
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> MergeEngine:
    """The engine of a table; `functions` are users' merge functions.

    Raises `UnsupportedError` as `engine_class` does.
    """
    merged = tuple(f for f in fields if f.name not in partition_keys)
    return engine_class(options).of(order, merged, options, functions)


def column_merger(
    order: MergeOrder,
    fields: tuple[Field, ...],
    options: TableOptions,
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> MergeEngine:
    """What merges rows column by column as options say, of which a delete takes away all before it.

    It is the engine of no table, and asks for no 'merge-engine'.
    """
    engine = Aggregation.of(order, fields, options, functions)
    return replace(engine, remove_record_on_delete=True)


def compacts_by_lookup(options: TableOptions) -> bool:
    """Whether a compaction folds into each value what the levels above it hold for the key.

    Values stay on those levels and must not be counted again.
    """
    return (
        options.changelog_producer == "lookup"
        or options.force_lookup
        or options.deletion_vectors_enabled
        or engine_class(options).compacts_by_lookup
    )
