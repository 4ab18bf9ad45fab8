"""What a table is: its columns and their history, its options, and how much it stores."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from keytide.base.dataclass import dataclass
from keytide.base.text import utc
from keytide.format.paths import split_branch
from keytide.format.schema import TableSchema
from keytide.lake.table import Table
from keytide.snapshot.stored_table import PinnedTable

_SCHEMAS_SHOWN = 30


@dataclass(frozen=True)
class ColumnLine:
    """A column."""

    name: str
    type: str
    role: str
    is_nullable: bool
    default: str | None
    comment: str | None


@dataclass(frozen=True)
class SchemaStep:
    """A schema that the table had, and how it differs from the previous one."""

    id: int
    time: datetime
    changes: tuple[str, ...]
    is_current: bool


@dataclass(frozen=True)
class Figures:
    """How much a table stores at its latest snapshot.

    `stored` counts stored rows, including old versions and deletes. `snapshot_id` is None for a
    table without any write.
    """

    snapshot_id: int | None = None
    time: datetime | None = None
    operation: str = ""
    stored: int = 0
    files: int = 0
    size: int = 0
    partitions: int = 0
    buckets: int = 0
    watermark: int | None = None


@dataclass(frozen=True)
class Overview:
    """Everything that the overview of a table shows."""

    name: str
    branch: str | None
    uri: str
    comment: str | None
    primary_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    columns: tuple[ColumnLine, ...]
    options: tuple[tuple[str, str], ...]
    schemas: tuple[SchemaStep, ...]
    schemas_left_out: int
    figures: Figures


def overview_of(table: Table) -> Overview:
    """The overview of a table, read at one snapshot. Raises `DataError` for damaged metadata."""
    seen = table.stored.pinned()
    schema = seen.schema
    _, branch = split_branch(table.name)
    newest = seen.metadata.newest_schema().id
    first = max(0, newest + 1 - _SCHEMAS_SHOWN)
    found = seen.metadata.schemas(range(max(0, first - 1), newest + 1))
    roles = {"primary key": schema.primary_keys, "partition": schema.partition_keys}
    columns = tuple(
        ColumnLine(
            field.name,
            field.type.with_nullable(True).sql(),
            ", ".join(role for role, names in roles.items() if field.name in names),
            field.type.nullable,
            field.default_value,
            field.description,
        )
        for field in schema.fields
    )
    return Overview(
        name=table.name,
        branch=branch,
        uri=table.uri,
        comment=schema.comment,
        primary_key=tuple(schema.primary_keys),
        partition_by=tuple(schema.partition_keys),
        columns=columns,
        options=tuple(sorted(schema.options.items())),
        schemas=tuple(_steps([found[number] for number in sorted(found)], first, schema.id)),
        schemas_left_out=first,
        figures=figures_of(seen),
    )


def figures_of(seen: PinnedTable) -> Figures:
    """How much a table stores. Raises `DataError` for damaged metadata."""
    snapshot = seen.metadata.latest_snapshot()
    if snapshot is None:
        return Figures()
    live = seen.live_files(snapshot)
    filled = [bucket for bucket, state in live.buckets.items() if not state.is_empty]
    return Figures(
        snapshot.id,
        utc(snapshot.time_millis),
        snapshot.commit_kind.value.lower(),
        snapshot.total_record_count,
        len(live.files),
        int(live.files.column("_FILE_SIZE").sum()),
        len({partition for partition, _ in filled}),
        len(filled),
        snapshot.watermark,
    )


def _steps(found: list[TableSchema], first: int, current: int) -> Iterator[SchemaStep]:
    """Each schema from the first one on, the latest first."""
    before = {after.id: earlier for earlier, after in pairwise(found)}
    for schema in reversed(found):
        if schema.id < first:
            return
        earlier = before.get(schema.id)
        changes = ["created"] if earlier is None else differences(earlier, schema)
        yield SchemaStep(schema.id, utc(schema.time_millis), tuple(changes), schema.id == current)


def differences(before: TableSchema, after: TableSchema) -> list[str]:
    """What an alteration changed, in words. Columns are identified by their id."""
    old, new = ({field.id: field for field in schema.fields} for schema in (before, after))
    found = [f"column {f.name} {f.type.sql()} added" for id_, f in new.items() if id_ not in old]
    found += [f"column {f.name} dropped" for id_, f in old.items() if id_ not in new]
    kept = [(old[id_], field) for id_, field in new.items() if id_ in old]
    for was, now in kept:
        if was.name != now.name:
            found.append(f"column {was.name} renamed to {now.name}")
        if was.type != now.type:
            found.append(f"column {now.name} from {was.type.sql()} to {now.type.sql()}")
        if was.description != now.description:
            found.append(f"comment of column {now.name} changed")
        if was.default_value != now.default_value:
            found.append(f"default of column {now.name} changed")
    options, new_options = before.options, after.options
    found += [
        f"{key} = {new_options[key]}"
        for key in sorted(new_options)
        if options.get(key) != new_options[key]
    ]
    found += [f"{key} reset" for key in sorted(set(options) - set(new_options))]
    if before.comment != after.comment:
        found.append("comment changed")
    if [id_ for id_ in old if id_ in new] != [id_ for id_ in new if id_ in old]:
        found.append("columns in another order")
    return found or ["no change that is shown here"]
