"""The target table of a flow of change events: created for it, or checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from keytide.catalogs.alter import alter_table
from keytide.catalogs.catalog import Catalog, NewTable
from keytide.definition.evolution import SetOption
from keytide.errors import InvalidError
from keytide.feeds.flow import Flow
from keytide.feeds.history import IGNORED_NULLS
from keytide.feeds.latest import SEQUENCES
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys, stored_names
from keytide.snapshot.stored import StoredTable

__all__ = ["MARKS", "flow_target"]

MARKS = "user.auto-cdc"
"""The option in which a table stores the flow that fills it."""


def flow_target(catalog: Catalog, flow: Flow) -> StoredTable:
    """Open the target of a flow, or create it such that the order of events does not matter.

    Raises `InvalidError` for a table that the flow cannot fill, and for one that another flow
    fills, because the rows of both would be mixed.
    """
    name = flow.request.target
    if catalog.find(name) is None:
        catalog.create_table(name, _wanted(flow), exists_ok=True)
    table = catalog.table(name)
    problem = next(_problems(table.schema, flow), None)
    if problem is not None:
        raise InvalidError(
            f"table {table.name} cannot be the target of the flow: {problem}. Choose a new name, "
            "and the flow creates the target, or name a suitable table"
        )
    if flow.reads_first and MARKS not in table.schema.options:
        alter_table(table.metadata, [SetOption(MARKS, flow.request.marks)])
    return table


def _wanted(flow: Flow) -> NewTable:
    given = stored_names(flow.request.options)
    return NewTable(flow.fields, _primary_key(flow), options={**_options(flow), **given})


def _primary_key(flow: Flow) -> tuple[str, ...]:
    return (*flow.request.keys, *flow.starts) if flow.keeps_history else flow.request.keys


def _options(flow: Flow) -> Mapping[str, str]:
    needed = {keys.SEQUENCE_FIELD: ",".join(_sequence(flow)), MARKS: flow.request.marks}
    if flow.keeps_history:
        needed[keys.BUCKET_KEY] = ",".join(flow.request.keys)
    return needed


def _sequence(flow: Flow) -> tuple[str, ...]:
    # All versions of an interval have the same start, so the later commit wins. Also, a table with
    # a sequence field keeps deleted rows.
    return flow.starts if flow.keeps_history else flow.request.sequence_by


def _problems(schema: TableSchema, flow: Flow) -> Iterator[str]:
    options = TableOptions.parse(schema.options)
    wanted = _primary_key(flow)
    if set(schema.primary_keys) != set(wanted):
        yield _difference("its primary key", schema.primary_keys, wanted)
    if options.sequence_field != _sequence(flow):
        yield _difference(f"its '{keys.SEQUENCE_FIELD}'", options.sequence_field, _sequence(flow))
    if options.sequence_sort_order == "descending":
        yield f"the version with the smallest sequence wins ('{keys.SEQUENCE_FIELD_SORT_ORDER}')"
    # The default merge engine keeps the latest row of each key.
    if options.merge_engine != TableOptions.parse({}).merge_engine or options.ignore_delete:
        yield "it does not keep the latest row of each key and its deletes"
    if schema.is_indexed:
        yield f"it has a key index ('{keys.UPSERT_MODE}')"
    known = schema.options.get(MARKS, flow.request.marks)
    if known != flow.request.marks:
        yield f"it is the target of the flow {known}, but this flow is {flow.request.marks}"
    if flow.keeps_history:
        yield from _problems_of_history(schema, options, flow)
    elif flow.reads_first and SEQUENCES not in schema.by_name:
        yield f"it has no column {SEQUENCES}, which stores the sequence of each value"
    elif flow.reads_first and not set(schema.partition_keys) <= set(flow.request.keys):
        yield "a key can be in several partitions; the partition columns must be among the keys"


def _problems_of_history(schema: TableSchema, options: TableOptions, flow: Flow) -> Iterator[str]:
    notes = (IGNORED_NULLS,) if flow.request.ignores_nulls else ()
    lacking = {*flow.starts, *flow.ends, *notes} - set(schema.names)
    if lacking:
        yield f"it has no column {min(lacking)}"
    apart = {*schema.partition_keys, *(options.bucket_key or schema.trimmed_primary_keys)}
    has_one_place = options.bucket == 1 and not schema.partition_keys
    if not has_one_place and not apart <= set(flow.request.keys):
        yield (
            "the rows of a key can be in several buckets or partitions; its partition columns "
            f"and '{keys.BUCKET_KEY}' must be among {', '.join(flow.request.keys)}"
        )


def _difference(what: str, found: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    return f"{what} is {', '.join(found) or 'not set'}, expected {', '.join(wanted)}"
