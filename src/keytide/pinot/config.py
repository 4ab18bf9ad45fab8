"""Apache Pinot's schema and table config, parsed to typed values.

Documents are parsed member by member into frozen dataclasses. Each field of a dataclass states its
member and how the value is read. Like Pinot's own reader, this one accepts `"true"` for `true` and
`"5"` for 5, and treats null as a missing member.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from keytide.base.arguments import shown
from keytide.base.dataclass import Field, dataclass, field, fields
from keytide.base.process import cached_property
from keytide.errors import InvalidError

# -- documents -------------------------------------------------------------------------------------


Document: TypeAlias = Mapping[str, Any]
DocumentSource: TypeAlias = "Mapping[str, Any] | str | Path"
"""A document: a dict, a JSON string, or the path of a file."""

Reader: TypeAlias = Callable[[Any], Any]
"""Returns the typed value of a member, or raises `ValueError` with the expected value."""

_T = TypeVar("_T")


def document_of(given: DocumentSource, what: str) -> Document:
    """The document that a caller passes. Raises `InvalidError` if it is not a JSON object."""
    if isinstance(given, Mapping):
        return given
    content, named = given, what
    if isinstance(given, Path) or not given.lstrip().startswith("{"):
        named = f"{what} {str(given)!r}"
        try:
            content = Path(given).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise InvalidError(
                f"{named} cannot be read: {error}; pass a dict, a JSON string or a file path"
            ) from error
    try:
        document = json.loads(str(content))
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{named} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidError(f"{named} is {shown(document)}; expected a JSON object")
    return document


# -- readers of values -----------------------------------------------------------------------------


def anything(value: Any) -> Any:
    """Any value."""
    return value


def text(value: Any) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty string")
    return value


def boolean(value: Any) -> bool:
    """True or false."""
    known = {"true": True, "false": False}.get(str(value).lower())
    if known is None or not isinstance(value, bool | str):
        raise ValueError("true or false")
    return known


def number(value: Any) -> float:
    """A number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a number")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError("a number") from None


def choice(*words: str) -> Reader:
    """One of some values, case-insensitively."""

    def chosen(value: Any) -> str:
        if not isinstance(value, str) or value.upper() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value.upper()

    return chosen


def texts(value: Any) -> tuple[str, ...]:
    """A list of strings."""
    if not isinstance(value, list | tuple):
        raise ValueError("a list of strings")
    return tuple(map(text, value))


def map_of(reader: Reader) -> Reader:
    """An object whose members all have the same type."""

    def read_each(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("an object")
        return {str(name): reader(each) for name, each in value.items()}

    return read_each


def documents(value: Any) -> tuple[Document, ...]:
    """A list of objects."""
    if not isinstance(value, list | tuple) or not all(isinstance(v, Mapping) for v in value):
        raise ValueError("a list of objects")
    return tuple(value)


# -- members of a dataclass ------------------------------------------------------------------------


def member(name: str, reader: Reader, default: Any = None) -> Any:
    """A dataclass field for a member. `default` is used if it is missing."""
    return field(default=default, metadata={"member": name, "reader": reader})


def member_names(class_: type[Any]) -> list[str]:
    """The member names of the fields of a dataclass."""
    return [each.metadata["member"] for each in _member_fields(class_)]


def set_members(value: Any) -> set[str]:
    """The members whose value differs from the default."""
    return {
        each.metadata["member"]
        for each in _member_fields(type(value))
        if getattr(value, each.name) not in (each.default, {}, ())
    }


def read(class_: type[_T], document: Document, where: str, **others: Any) -> _T:
    """Read the members of a document into a dataclass. `others` are its other fields.

    Unknown members are ignored. Raises `InvalidError`, naming `where` and the invalid member.
    """
    values = {
        each.name: at(document, where, each.metadata["reader"], each.metadata["member"])
        for each in _member_fields(class_)
    }
    return class_(**others, **{name: value for name, value in values.items() if value is not None})


def _member_fields(class_: Any) -> Iterator[Field[Any]]:
    return (each for each in fields(class_) if "member" in each.metadata)


def at(document: Document, where: str, reader: Reader, *path: str) -> Any:
    """Read the value at a path of members, None if it is missing."""
    value: Any = document
    for place, name in enumerate(path):
        if not isinstance(value, Mapping):
            raise _misfit(where, path[:place], "an object", value)
        value = value.get(name)
        if value is None:
            return None
    try:
        return reader(value)
    except ValueError as error:
        raise _misfit(where, path, str(error), value) from None


def refuse_unknown(document: Document, known: Iterable[str], where: str) -> None:
    """Raise `InvalidError`, with similar names, for an unknown member."""
    names = list(known)
    for name in document:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "remove it"
            raise InvalidError(f"{where} has the unknown member {str(name)!r}; {hint}")


def _misfit(where: str, path: Iterable[str], expected: str, found: Any) -> InvalidError:
    named = ".".join(path)
    return InvalidError(f"{where}: {named!r} is {shown(found)}; expected {expected}")


# -- schema ----------------------------------------------------------------------------------------

_TYPES = (
    "INT", "LONG", "FLOAT", "DOUBLE", "BIG_DECIMAL", "BOOLEAN", "TIMESTAMP", "STRING", "JSON",
    "BYTES", "UUID", "MAP", "LIST", "STRUCT",
)  # fmt: skip
_ROLES = {
    "dimensionFieldSpecs": "dimension",
    "metricFieldSpecs": "metric",
    "dateTimeFieldSpecs": "date-time",
    "complexFieldSpecs": "complex",
}
# Members of columns and schemas that do not affect the rows of a table.
_OF_COLUMNS = (
    "fieldType", "maxLength", "maxLengthExceedStrategy", "virtualColumnProvider",
    "allowTrailingZeros", "sampleValue", "description", "tags", "childFieldSpecs",
)  # fmt: skip
_OF_SCHEMAS = ("description", "tags")


@dataclass(frozen=True)
class Column:
    """A field spec: a column of a schema.

    `role` is the list that contains it: dimension, metric, date-time or complex.
    """

    role: str
    name: str = member("name", text, "")
    type: str = member("dataType", choice(*_TYPES), "")
    is_single: bool = member("singleValueField", boolean, True)
    default: str | int | float | None = member("defaultNullValue", anything)
    is_not_null: bool = member("notNull", boolean, False)
    transform: str | None = member("transformFunction", text)
    format: str | None = member("format", text)
    granularity: str | None = member("granularity", text)

    @property
    def description(self) -> str:
        """The description of the column in messages."""
        many = "" if self.is_single else " with multiple values"
        return f"{self.name!r}, which is {self.type}{many}"


@dataclass(frozen=True)
class Schema:
    """A schema: the columns in the order of its lists, and the primary key.

    `has_nulls` is column based null handling.
    """

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    has_nulls: bool

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}


def parse_schema(given: DocumentSource) -> Schema:
    """Parse a schema. Raises `InvalidError`, naming the invalid member."""
    document = document_of(given, "Pinot's schema")
    where = f"Pinot's schema {document.get('schemaName', '')!r}"
    by_column = "enableColumnBasedNullHandling"
    known = ("schemaName", "primaryKeyColumns", by_column, *_ROLES, *_OF_SCHEMAS)
    refuse_unknown(document, known, where)
    columns = tuple(
        _column(spec, role, where)
        for kind, role in _ROLES.items()
        for spec in at(document, where, documents, kind) or ()
    )
    names = [column.name for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidError(f"{where} has two columns {twice[0]!r}; rename or remove one")
    return Schema(
        at(document, where, text, "schemaName") or "",
        columns,
        at(document, where, texts, "primaryKeyColumns") or (),
        at(document, where, boolean, by_column) or False,
    )


def _column(spec: Document, role: str, where: str) -> Column:
    where = f"{where}, column {spec.get('name', '')!r}"
    refuse_unknown(spec, [*member_names(Column), *_OF_COLUMNS], where)
    column = read(Column, spec, where, role=role)
    for name, value in (("name", column.name), ("dataType", column.type)):
        if not value:
            raise InvalidError(f"{where} lacks {name!r}, which every column needs; add it")
    return column


# -- upsertConfig ----------------------------------------------------------------------------------

_STRATEGIES = (
    "OVERWRITE", "FORCE_OVERWRITE", "IGNORE", "INCREMENT", "APPEND", "UNION", "MAX", "MIN",
)  # fmt: skip


@dataclass(frozen=True)
class Transform:
    """A column that is computed from the merged row."""

    column: str = member("columnName", text, "")
    function: str = member("transformFunction", text, "")


def _transforms(value: Any) -> tuple[Transform, ...]:
    found = []
    for each in documents(value):
        if each.keys() != {"columnName", "transformFunction"}:
            raise ValueError("a list of objects with 'columnName' and 'transformFunction'")
        found.append(read(Transform, each, "postPartialUpsertTransformConfigs"))
    return tuple(found)


_ENABLEMENT = choice("ENABLE", "DISABLE", "DEFAULT")


@dataclass(frozen=True)
class Upsert:
    """The member `upsertConfig` of a table config. Old names of its members are converted."""

    mode: str = member("mode", choice("FULL", "PARTIAL", "NONE"), "FULL")
    hash_function: str = member(
        "hashFunction", choice("NONE", "MD5", "MURMUR3", "UUID", "XXHASH", "XXH128"), "NONE"
    )
    comparison: tuple[str, ...] = member("comparisonColumns", texts, ())
    delete: str | None = member("deleteRecordColumn", text)
    drops_late: bool = member("dropOutOfOrderRecord", boolean, False)
    late_marker: str | None = member("outOfOrderRecordColumn", text)
    metadata_ttl: float = member("metadataTTL", number, 0.0)
    deleted_ttl: float = member("deletedKeysTTL", number, 0.0)
    is_delete_consistent: bool = member("enableDeletedKeysCompactionConsistency", boolean, False)
    default_strategy: str = member(
        "defaultPartialUpsertStrategy", choice(*_STRATEGIES), "OVERWRITE"
    )
    given_strategies: Mapping[str, str] | None = member(
        "partialUpsertStrategies", map_of(choice(*_STRATEGIES))
    )
    merger: str | None = member("partialUpsertMergerClass", text)
    transforms: tuple[Transform, ...] = member("postPartialUpsertTransformConfigs", _transforms, ())
    snapshot: str = member("snapshot", _ENABLEMENT, "DEFAULT")
    preload: str = member("preload", _ENABLEMENT, "DEFAULT")
    consistency: str = member("consistencyMode", choice("NONE", "SYNC", "SNAPSHOT"), "NONE")
    view_refresh_ms: float = member("upsertViewRefreshIntervalMs", number, 3000.0)
    new_segments_ms: float = member("newSegmentTrackingTimeMs", number, 10000.0)
    compacts_on_commit: bool = member("enableCommitTimeCompaction", boolean, False)
    consumes_on_commit: bool = member("allowPartialUpsertConsumptionDuringCommit", boolean, False)
    manager: str | None = member("metadataManagerClass", text)
    manager_configs: Mapping[str, Any] | None = member("metadataManagerConfigs", map_of(anything))

    @property
    def strategies(self) -> Mapping[str, str]:
        """The columns with a strategy of their own."""
        return self.given_strategies or {}


def _enabled(value: Any) -> str:
    return "ENABLE" if boolean(value) else "DEFAULT"


_OLD_NAMES = {
    "comparisonColumn": ("comparisonColumns", lambda value: (text(value),)),
    "enableSnapshot": ("snapshot", _enabled),
    "enablePreload": ("preload", _enabled),
}
"""Old names of members, with the new names."""


def _upsert(document: Document, where: str) -> Upsert:
    where = f"{where}, 'upsertConfig'"
    refuse_unknown(document, [*member_names(Upsert), *_OLD_NAMES], where)
    members = dict(document)
    for old, (name, reader) in _OLD_NAMES.items():
        value = at(document, where, reader, old)
        if value is None:
            continue
        if members.get(name) is not None and value != at(
            members, where, texts if name == "comparisonColumns" else _ENABLEMENT, name
        ):
            raise InvalidError(
                f"{where} gives {name!r} as {members[name]!r} and, by its old name {old!r}, as "
                f"{document[old]!r}; give it once"
            )
        members[name] = value
    return read(Upsert, members, where)


# -- tasks -----------------------------------------------------------------------------------------

COMPACTION = "UpsertCompactionTask"
_PERIOD = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_MS = (86_400_000, 3_600_000, 60_000, 1000)


def _period(value: Any) -> int:
    """The milliseconds of a period such as `7d` or `2h30m`."""
    found = _PERIOD.fullmatch(value) if isinstance(value, str) else None
    if found is None or not any(found.groups()):
        raise ValueError("a period such as 7d or 2h30m")
    return sum(int(n or 0) * ms for n, ms in zip(found.groups(), _MS, strict=True))


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        found = number(value)
        if not low <= found <= high or found != int(found):
            raise ValueError(f"an integer from {low} to {high}")
        return int(found)

    return parse


@dataclass(frozen=True)
class Compaction:
    """The settings of the compaction task. `idle` are those about servers and schedules."""

    idle: tuple[str, ...] = ()
    percent: int | None = member("invalidRecordsThresholdPercent", _whole(0, 100))
    count: int | None = member("invalidRecordsThresholdCount", _whole(1, 2**31 - 1))
    given_buffer_ms: int | None = member("bufferTimePeriod", _period)
    ids: str = member(
        "validDocIdsType",
        choice("SNAPSHOT", "SNAPSHOT_WITH_DELETE", "IN_MEMORY", "IN_MEMORY_WITH_DELETE"),
        "SNAPSHOT",
    )

    @property
    def buffer_ms(self) -> int | None:
        """The minimum age of a file. One week if only a threshold is given."""
        default = 7 * _MS[0] if (self.percent is not None or self.count is not None) else None
        return default if self.given_buffer_ms is None else self.given_buffer_ms


_OF_SERVERS = (
    "schedule", "tableMaxNumTasks", "numSegmentsBatchPerServerRequest", "ignoreCrcMismatch",
    "validDocIdsConsensusMode", "validDocIdsValidationMode", "minionInstanceTag",
)  # fmt: skip


def _compaction(document: Document, where: str) -> Compaction:
    where = f"{where}, 'task.taskTypeConfigsMap.{COMPACTION}'"
    refuse_unknown(document, [*member_names(Compaction), *_OF_SERVERS], where)
    return read(Compaction, document, where, idle=tuple(n for n in _OF_SERVERS if n in document))


# -- table config ----------------------------------------------------------------------------------

_OF_TABLES = (
    "tableName", "tableType", "segmentsConfig", "tenants", "tableIndexConfig", "metadata", "quota",
    "task", "routing", "query", "instanceAssignmentConfigMap", "instancePartitionsMap",
    "segmentAssignmentConfigMap", "fieldConfigList", "upsertConfig", "dedupConfig",
    "dimensionTableConfig", "ingestionConfig", "tierConfigs", "tunerConfigs", "tierOverwrites",
    "tableSamplers", "isDimTable", "isMaterializedView", "description", "tags",
)  # fmt: skip


@dataclass(frozen=True)
class TableConfig:
    """A table config. `partitions` has the numbers of partitions by partition column."""

    name: str
    type: str
    time_column: str | None
    upsert: Upsert | None
    has_dedup: bool
    selector: str
    tenant_overrides: tuple[str, ...]
    instances_of: tuple[str, ...]
    tiers: int
    star_trees: tuple[str, ...]
    aggregations: tuple[str, ...]
    streams: int
    has_nulls: bool
    partitions: Mapping[str, int]
    tasks: tuple[str, ...]
    compaction: Compaction
    unused_ingestion: tuple[str, ...]


def parse_table_config(given: DocumentSource) -> TableConfig:
    """Parse a table config. Raises `InvalidError`, naming the invalid member."""
    document = document_of(given, "Pinot's table config")
    where = f"Pinot's table config {document.get('tableName', '')!r}"
    refuse_unknown(document, _OF_TABLES, where)

    def find(reader: Any, *path: str) -> Any:
        return at(document, where, reader, *path)

    kind = find(choice("REALTIME", "OFFLINE"), "tableType")
    name = find(text, "tableName")
    for key, value in (("tableName", name), ("tableType", kind)):
        if value is None:
            raise InvalidError(f"{where} lacks {key!r}, which every table needs; add it")
    upsert = find(map_of(anything), "upsertConfig")
    compaction = find(map_of(anything), "task", "taskTypeConfigsMap", COMPACTION)
    return TableConfig(
        name=name.removesuffix(f"_{kind}"),
        type=kind,
        time_column=find(text, "segmentsConfig", "timeColumnName"),
        upsert=None if upsert is None else _upsert(upsert, where),
        has_dedup=bool(find(boolean, "dedupConfig", "dedupEnabled")),
        selector=find(text, "routing", "instanceSelectorType") or "balanced",
        tenant_overrides=_present(find, "tenants", "tagOverrideConfig"),
        instances_of=(
            *_present(find, "instanceAssignmentConfigMap"),
            *_present(find, "instancePartitionsMap"),
        ),
        tiers=len(find(documents, "tierConfigs") or ()),
        star_trees=_switches(find, "enableDefaultStarTree", _INDEXING, "starTreeIndexConfigs"),
        aggregations=_switches(find, "aggregateMetrics", "ingestionConfig", "aggregationConfigs"),
        streams=_streams(find),
        has_nulls=bool(find(boolean, "tableIndexConfig", "nullHandlingEnabled")),
        partitions=_partitions(find),
        tasks=_present(find, "task", "taskTypeConfigsMap"),
        compaction=_compaction(compaction or {}, where),
        unused_ingestion=tuple(
            name for name in _present(find, "ingestionConfig") if name in _CHANGES_ROWS
        ),
    )


Find: TypeAlias = Callable[..., Any]
"""Reads a member of the table config by its path."""

_CHANGES_ROWS = ("transformConfigs", "filterConfig", "enrichmentConfigs", "complexTypeConfig")
_INDEXING = "tableIndexConfig"


def _present(find: Find, *path: str) -> tuple[str, ...]:
    """The members of an object that are not null."""
    found = find(map_of(anything), *path) or {}
    return tuple(name for name, value in found.items() if value is not None)


def _switches(find: Find, flag: str, *path: str) -> tuple[str, ...]:
    """Which of two members are set: a flag for indexing, and a list of objects."""
    found = [flag] if find(boolean, _INDEXING, flag) else []
    if find(documents, *path):
        found.append(path[-1])
    return tuple(found)


def _streams(find: Find) -> int:
    """The number of streams, from the old member for one stream or the new one for several."""
    old = bool(_present(find, _INDEXING, "streamConfigs"))
    path = ("ingestionConfig", "streamIngestionConfig", "streamConfigMaps")
    return max(int(old), len(find(documents, *path) or ()))


def _partitions(find: Find) -> dict[str, int]:
    path = (_INDEXING, "segmentPartitionConfig", "columnPartitionMap")
    found = find(map_of(map_of(anything)), *path) or {}
    return {column: find(_count, *path, column, "numPartitions") or 1 for column in found}


def _count(value: Any) -> int:
    found = number(value)
    if not (found.is_integer() and 1 <= found < 2**31):
        raise ValueError("an integer, 1 or more")
    return int(found)
