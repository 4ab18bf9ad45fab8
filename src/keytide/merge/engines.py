"""The list of merge engines, and the engine of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from keytide.errors import UnsupportedError
from keytide.merge.aggregation import Aggregation
from keytide.merge.engine import MergeEngine
from keytide.merge.functions.registry import NO_FUNCTIONS
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import MergeOrder
from keytide.merge.partial_update import PartialUpdate
from keytide.merge.pick_one import Deduplicate, FirstRow
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
"""The engines by their option value."""


def engine_class(options: TableOptions) -> type[MergeEngine]:
    """The engine that a table's options select.

    Raises `UnsupportedError`, naming the engine, if this release does not support it.
    """
    found = ENGINES.get(options.merge_engine)
    if found is None:
        raise UnsupportedError(
            f"merge engine {options.merge_engine!r} is not supported by this release; supported "
            f"engines: {', '.join(sorted(ENGINES))}"
        )
    return found


def engines_with(option: str) -> tuple[str, ...]:
    """The names of the engines to which an option, given by its key, applies.

    None if it applies to all.
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
    """The engine of a table. `functions` are user-defined functions.

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
    """A merge column by column as options say, in which a delete removes everything before it.

    It is not the engine of any table, and needs no 'merge-engine'.
    """
    engine = Aggregation.of(order, fields, options, functions)
    return replace(engine, remove_record_on_delete=True)


def compacts_by_lookup(options: TableOptions) -> bool:
    """Whether a compaction merges the values of higher levels into each version of a key.

    The higher levels keep their values, which must not be counted twice.
    """
    return (
        options.changelog_producer == "lookup"
        or options.force_lookup
        or options.deletion_vectors_enabled
        or engine_class(options).compacts_by_lookup
    )
