"""Rules for table configs: what Pinot refuses, and what this release does not support.

Each rule describes a violation, or returns nothing. `RULES` are those of Pinot's own validator. An
entry of `NOT_YET` is removed once the feature is supported. A `Case` is a table config with its
schema, and has properties derived from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property
from keytide.errors import InvalidError, UnsupportedError
from keytide.pinot.config import COMPACTION, Column, Schema, TableConfig, Upsert, set_members
from keytide.pinot.scalar_functions import FUNCTIONS, parsed, unknown_parts

# -- the case of a table config and its schema -----------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A table config and schema to create a table from."""

    table: TableConfig
    schema: Schema

    @property
    def upsert(self) -> Upsert:
        """The upsert config. Empty if it is missing."""
        return self.table.upsert or Upsert(mode="NONE")

    @property
    def is_on(self) -> bool:
        """Whether the table has upserts."""
        return self.upsert.mode != "NONE"

    @property
    def is_partial(self) -> bool:
        """Whether rows are merged column by column (partial upserts)."""
        return self.upsert.mode == "PARTIAL"

    @property
    def is_offline(self) -> bool:
        """Whether rows are loaded from files, and not from a stream."""
        return self.table.type == "OFFLINE"

    @property
    def comparison(self) -> tuple[str, ...]:
        """The comparison columns, by default the time column."""
        return self.upsert.comparison or tuple(filter(None, (self.table.time_column,)))

    @property
    def has_nulls(self) -> bool:
        """Whether NULLs are distinguished from their default values."""
        return self.table.has_nulls or self.schema.has_nulls

    @property
    def ttls(self) -> dict[str, float]:
        """The configured TTLs, by member."""
        named = {"metadataTTL": self.upsert.metadata_ttl, "deletedKeysTTL": self.upsert.deleted_ttl}
        return {name: value for name, value in named.items() if value > 0}

    def column(self, name: str) -> Column | None:
        """The column of that name, if there is one."""
        return self.schema.by_name.get(name)

    def unknown(self, names: Iterable[str | None]) -> list[str]:
        """The names that no column has."""
        return [name for name in names if name is not None and self.column(name) is None]

    @cached_property
    def functions(self) -> tuple[tuple[str, str, exp.Expr | None], ...]:
        """Columns computed after a merge: name, text, and the tree if it parses."""
        return tuple((t.column, t.function, parsed(t.function)) for t in self.upsert.transforms)


# -- rules -----------------------------------------------------------------------------------------


_NUMBERS = ("INT", "LONG", "FLOAT", "DOUBLE", "BIG_DECIMAL")
_STORED_AS_NUMBERS = (*_NUMBERS, "BOOLEAN", "TIMESTAMP")
_SELECTORS = ("strictreplicagroup", "multistagereplicagroup")
_COMPACTIONS = (COMPACTION, "UpsertCompactMergeTask")


Finding = Callable[[Case], "str | None"]


@dataclass(frozen=True)
class Rule:
    """`find` describes a violation, or returns None. `instead` says how to fix it."""

    name: str
    find: Finding
    instead: str


def check(case: Case) -> None:
    """Raise `InvalidError` for what Pinot refuses, then `UnsupportedError` for unsupported
    features.

    The message has the value found, the expected value and how to fix it.
    """
    for rules, error in ((RULES, InvalidError), (NOT_YET, UnsupportedError)):
        for rule in rules:
            found = rule.find(case)
            if found is not None:
                raise error(f"Pinot's table config {case.table.name!r}: {found}; {rule.instead}")


def idle_members(case: Case) -> list[str]:
    """Members that are set and have no effect on a Keytide table."""
    found = set_members(case.upsert)
    members = [f"upsertConfig.{name}" for name in IDLE if name in found]
    members += [f"ingestionConfig.{name}" for name in case.table.unused_ingestion]
    members += [f"task.{name}" for name in case.table.tasks if name != COMPACTION]
    members += [f"task.{COMPACTION}.{name}" for name in case.table.compaction.idle]
    members += [
        f"transformFunction of column {column.name!r}"
        for column in case.schema.columns
        if column.transform is not None
    ]
    return members


# -- findings --------------------------------------------------------------------------------------


def _if(holds: bool, found: str) -> str | None:
    return found if holds else None


def _unless_on(case: Case) -> str | None:
    if case.is_on or case.table.has_dedup:
        return None
    return "there is no 'upsertConfig'" if case.table.upsert is None else "'mode' is 'NONE'"


def _bad_key(case: Case) -> str | None:
    names = case.schema.primary_key
    if not names:
        return "the schema has no 'primaryKeyColumns'"
    if unknown := case.unknown(names):
        return f"'primaryKeyColumns' names {', '.join(unknown)}, which the schema does not have"
    many = [
        column.description for column in map(case.column, names) if column and not column.is_single
    ]
    return f"'primaryKeyColumns' names {', '.join(many)}" if many else None


def _bad_column(case: Case, member: str, name: str | None, *types: str) -> str | None:
    column = case.column(name or "")
    if name is None:
        return None
    if column is None:
        return f"{member!r} names {name!r}, which the schema does not have"
    is_fine = column.is_single and column.type in types
    return _if(not is_fine, f"{member!r} names {column.description}")


def _consistent_deletes(wrong: Callable[[Case], bool], found: str) -> Finding:
    described = f"'enableDeletedKeysCompactionConsistency' is on {found}"
    return lambda case: _if(case.upsert.is_delete_consistent and wrong(case), described)


def _ttl_of_no_number(case: Case) -> str | None:
    columns = [case.column(name) for name in case.comparison]
    described = [
        c.description for c in columns if c and not (c.type in _STORED_AS_NUMBERS and c.is_single)
    ]
    if not case.ttls or (columns and not described):
        return None
    by = f"are compared by {', '.join(described)}" if described else "are compared by no column"
    return f"{_ttl_text(case)} and rows {by}"


def _ttl_of_fractions(case: Case) -> str | None:
    columns = [case.column(name) for name in case.comparison]
    described = [c.description for c in columns if c and c.type not in ("INT", "LONG", "TIMESTAMP")]
    return _if(bool(case.ttls and described), f"{_ttl_text(case)} and rows are compared by "
               f"{', '.join(described)}")  # fmt: skip


def _ttl_text(case: Case) -> str:
    described = " and ".join(f"{name!r} = {value:g}" for name, value in case.ttls.items())
    return f"{described} is set"


def _view_mode(wrong: Callable[[Upsert], bool], found: str) -> Finding:
    def find(case: Case) -> str | None:
        mode = case.upsert.consistency
        holds = mode != "NONE" and wrong(case.upsert)
        return _if(holds, f"'consistencyMode' is {mode!r} {found}")

    return find


def _strategies(wrong: Callable[[Case, str, Column | None], bool], *strategies: str) -> Finding:
    """Columns whose strategy does not fit them, optionally only for some strategies."""

    def find(case: Case) -> str | None:
        found = case.upsert.strategies.items() if case.is_partial else ()
        described = [
            f"{name!r}: {strategy!r}"
            for name, strategy in found
            if (not strategies or strategy in strategies) and wrong(case, name, case.column(name))
        ]
        return f"'partialUpsertStrategies' has {', '.join(described)}" if described else None

    return find


def _transforms(wrong: Callable[[Case, str, str, exp.Expr | None], bool]) -> Finding:
    """Columns computed after a merge that are invalid in some way."""

    def find(case: Case) -> str | None:
        described = [f"{name!r} = {text!r}" for name, text, tree in case.functions
                if wrong(case, name, text, tree)]  # fmt: skip
        return (
            f"'postPartialUpsertTransformConfigs' has {', '.join(described)}" if described else None
        )

    return find


def _foreign_functions(case: Case) -> str | None:
    found = {name: unknown_parts(tree) for name, _, tree in case.functions if tree is not None}
    described = [f"{name!r} by {', '.join(parts)}" for name, parts in found.items() if parts]
    return _if(
        bool(described), f"'postPartialUpsertTransformConfigs' computes {', '.join(described)}"
    )


def _columns_read(tree: exp.Expr | None) -> set[str]:
    return set() if tree is None else {column.name for column in tree.find_all(exp.Column)}


def _incomparable(case: Case) -> str | None:
    columns = [case.column(name) for name in case.comparison]
    described = [
        c.description for c in columns if c and not (c.type in _COMPARABLE and c.is_single)
    ]
    return f"rows are compared by {', '.join(described)}" if described else None


_COMPARABLE = (*_STORED_AS_NUMBERS, "STRING", "JSON", "BYTES", "UUID")


def _is_set(member: str) -> Finding:
    return lambda case: _if(member in set_members(case.upsert), f"'upsertConfig.{member}' is set")


def _is_set_without_merges(member: str) -> Finding:
    find = _is_set(member)
    return lambda case: None if case.is_partial else find(case)


# -- the rules -------------------------------------------------------------------------------------

RULES = (
    Rule("upsert and dedup",
         lambda c: _if(c.is_on and c.table.has_dedup, "'upsertConfig' and 'dedupConfig' are on"),
         "a table can have only one of them: remove the other one"),
    Rule("no upsert", _unless_on,
         "expected 'mode' 'FULL': for a table without upserts, use Lake.create_table"),
    Rule("primary key", _bad_key,
         "a primary key has one or more single-value columns: name such columns"),
    Rule("routing",
         lambda c: _if(c.table.selector.lower() not in _SELECTORS,
                       f"'routing.instanceSelectorType' is {c.table.selector!r}"),
         "expected 'strictReplicaGroup' or 'multiStageReplicaGroup', because one server must know "
         "all rows of a key: set one of them"),
    Rule("tenant overrides",
         lambda c: _if(bool(not c.is_offline and c.table.tenant_overrides),
                       f"'tenants.tagOverrideConfig' sets {', '.join(c.table.tenant_overrides)}"),
         "all rows of a key must stay on one server: remove it"),
    Rule("completed instances",
         lambda c: _if(not c.is_offline and "COMPLETED" in c.table.instances_of,
                       "instances are set for 'COMPLETED' segments"),
         "all rows of a key must stay on one server: remove 'COMPLETED' from "
         "'instanceAssignmentConfigMap' and 'instancePartitionsMap'"),
    Rule("offline and partial",
         lambda c: _if(c.is_offline and c.is_partial, "'tableType' is 'OFFLINE' and 'mode' "
                       "'PARTIAL'"),
         "only a 'REALTIME' table merges columns: use 'FULL'"),
    Rule("offline partitions",
         lambda c: _if(c.is_offline and not c.table.partitions,
                       "'tableType' is 'OFFLINE' and there is no 'segmentPartitionConfig'"),
         "expected 'tableIndexConfig.segmentPartitionConfig.columnPartitionMap' with the number of "
         "partitions: add it"),
    Rule("nothing to compare by",
         lambda c: _if(not c.comparison, "there is neither 'upsertConfig.comparisonColumns' nor "
                       "'segmentsConfig.timeColumnName'"),
         "the rows of a key are ordered by a comparison column: name one"),
    Rule("tiers",
         lambda c: _if(c.table.tiers > 0, f"'tierConfigs' has {c.table.tiers} tiers"),
         "all rows of a key must stay on one server: remove it"),
    Rule("star-tree",
         lambda c: _if(bool(c.table.star_trees),
                       f"'tableIndexConfig' has {', '.join(c.table.star_trees)}"),
         "a star-tree index also counts replaced rows: remove it"),
    Rule("aggregated metrics",
         lambda c: _if(bool(c.table.aggregations),
                       f"metrics are aggregated ({', '.join(c.table.aggregations)})"),
         "replaced rows cannot be removed from an aggregate: remove the aggregation"),
    Rule("streams",
         lambda c: _if(c.table.streams > 1, f"there are {c.table.streams} stream configs"),
         "a table with upserts can have only one stream: remove the others"),
    Rule("comparison column",
         lambda c: _if(bool(c.unknown(c.comparison)),
                       f"rows are compared by {', '.join(c.unknown(c.comparison))}"),
         "expected columns of the schema: add them to the schema, or name other columns"),
    Rule("delete column",
         lambda c: _bad_column(c, "deleteRecordColumn", c.upsert.delete, "BOOLEAN", "STRING",
                               *_NUMBERS),
         "expected a single-value column of type BOOLEAN, STRING or a number: name such a column"),
    Rule("marker and drop",
         lambda c: _if(c.upsert.drops_late and c.upsert.late_marker is not None,
                       "'outOfOrderRecordColumn' and 'dropOutOfOrderRecord' are set"),
         "dropped rows cannot be marked: remove one of them"),
    Rule("marker column",
         lambda c: _bad_column(c, "outOfOrderRecordColumn", c.upsert.late_marker, "BOOLEAN"),
         "expected a single-value BOOLEAN column: name such a column"),
    Rule("consistent deletes and metadata TTL",
         _consistent_deletes(lambda c: c.upsert.metadata_ttl > 0, "with a 'metadataTTL'"),
         "they cannot be combined: remove one of them"),
    Rule("consistent deletes and preload",
         _consistent_deletes(lambda c: c.upsert.preload == "ENABLE", "with 'preload' 'ENABLE'"),
         "they cannot be combined: remove one of them"),
    Rule("consistent deletes without TTL",
         _consistent_deletes(lambda c: c.upsert.deleted_ttl <= 0, "without a 'deletedKeysTTL'"),
         "expected a value above 0: set it"),
    Rule("consistent deletes without snapshot",
         _consistent_deletes(lambda c: c.upsert.snapshot == "DISABLE", "with 'snapshot' 'DISABLE'"),
         "expected 'ENABLE': set it"),
    Rule("consistent deletes without compaction",
         _consistent_deletes(lambda c: not {*_COMPACTIONS} & {*c.table.tasks},
                             "without a task that compacts"),
         f"expected {' or '.join(_COMPACTIONS)} in 'task.taskTypeConfigsMap': add one"),
    Rule("TTL and several comparison columns",
         lambda c: _if(bool(c.ttls) and len(c.comparison) > 1, f"{_ttl_text(c)} and "
                       f"rows are compared by {', '.join(c.comparison)}"),
         "a TTL needs exactly one comparison column: name one, or remove the TTL"),
    Rule("TTL of no number", _ttl_of_no_number,
         "a TTL needs a number or a time as comparison column: name such a column, or remove the "
         "TTL"),
    Rule("metadata TTL without snapshot",
         lambda c: _if(c.upsert.metadata_ttl > 0 and c.upsert.snapshot == "DISABLE",
                       "'metadataTTL' is set and 'snapshot' is 'DISABLE'"),
         "expected 'ENABLE': set it, or remove the TTL"),
    Rule("TTL of deletes without deletes",
         lambda c: _if(c.upsert.deleted_ttl > 0 and c.upsert.delete is None,
                       "'deletedKeysTTL' is set and there is no 'deleteRecordColumn'"),
         "name the column that marks deletes, or remove the TTL"),
    Rule("view without tracking",
         _view_mode(lambda u: u.new_segments_ms <= 0, "and 'newSegmentTrackingTimeMs' is not above "
                    "0"),
         "expected a time above 0: set it, or use the mode 'NONE'"),
    Rule("view and drop",
         _view_mode(lambda u: u.drops_late, "and 'dropOutOfOrderRecord' is set"),
         "in this mode, rows are stored before they are compared: remove one of them"),
    Rule("view and marker",
         _view_mode(lambda u: u.late_marker is not None, "and 'outOfOrderRecordColumn' is set"),
         "in this mode, rows are stored before they are compared: remove one of them"),
    Rule("partial without NULLs",
         lambda c: _if(c.is_partial and not c.has_nulls, "'mode' is 'PARTIAL' without null "
                       "handling"),
         "a missing value must be distinguishable from a default value: set 'nullHandlingEnabled' "
         "in 'tableIndexConfig', or 'enableColumnBasedNullHandling' in the schema"),
    Rule("merger and strategies",
         lambda c: _if(c.is_partial and c.upsert.merger is not None
                       and bool(c.upsert.strategies),
                       "'partialUpsertMergerClass' and 'partialUpsertStrategies' are set"),
         "a merger class merges whole rows: remove one of them"),
    Rule("strategy of a fixed column",
         _strategies(lambda c, name, column: column is None
                     or name in (*c.schema.primary_key, *c.comparison)),
         "expected columns of the schema that are neither in the primary key nor comparison "
         "columns: remove the others"),
    Rule("sums",
         _strategies(lambda c, _, column: column is None or column.type not in _STORED_AS_NUMBERS
                     or column.role in ("date-time", "complex"), "INCREMENT"),
         "'INCREMENT' needs a dimension or metric that is a number: choose another strategy"),
    Rule("lists",
         _strategies(lambda c, _, column: column is not None and column.is_single, "APPEND",
                     "UNION"),
         "'APPEND' and 'UNION' need multi-value columns: choose another strategy"),
    Rule("transforms without merges",
         lambda c: _if(bool(c.functions) and not c.is_partial, "'postPartialUpsertTransformConfigs'"
                       f" is set and 'mode' is {c.upsert.mode!r}"),
         "they compute columns of merged rows, which only 'PARTIAL' has: remove them"),
    Rule("transforms of fixed columns",
         _transforms(lambda c, name, _, tree: name in (*c.schema.primary_key, *c.comparison,
                                                       c.upsert.delete, c.upsert.late_marker)),
         "columns of the primary key, comparison columns and columns that mark rows cannot be "
         "changed: name other columns"),
    Rule("transforms of one column twice",
         _transforms(lambda c, name, _, tree: [column for column, _, _ in c.functions].count(name)
                     > 1),
         "a column can be computed only once: remove the other functions"),
    Rule("transforms of unknown columns",
         _transforms(lambda c, name, _, tree: bool(c.unknown([name, *_columns_read(tree)]))),
         "expected columns of the schema: add them to the schema, or name other columns"),
    Rule("Groovy",
         _transforms(lambda c, _, text, tree: text.strip().lower().startswith("groovy")),
         "Groovy is disabled: use Pinot's functions"),
    Rule("transforms that do not parse",
         _transforms(lambda c, _, text, tree: tree is None),
         "expected an expression such as plus(score, bonus)"),
    Rule("transforms of themselves",
         _transforms(lambda c, name, _, tree: name in _columns_read(tree)),
         "a column cannot be computed from itself: use other columns"),
)  # fmt: skip
"""What Pinot's own validator refuses, in its order."""

NOT_YET = (
    Rule("dedup", lambda c: _if(c.table.has_dedup, "'dedupConfig.dedupEnabled' is true"),
         "this release keeps the latest row of a key, not the first: use 'upsertConfig'"),
    Rule("complex columns",
         lambda c: ", ".join(
             x.description for x in c.schema.columns if x.type in ("MAP", "LIST", "STRUCT")
         ) or None,
         "this release does not support such columns: use JSON"),
    Rule("strategies", _is_set_without_merges("partialUpsertStrategies"),
         "only the mode 'PARTIAL' merges columns: use this mode, or remove the member"),
    Rule("default strategy", _is_set_without_merges("defaultPartialUpsertStrategy"),
         "only the mode 'PARTIAL' merges columns: use this mode, or remove the member"),
    Rule("merger", _is_set("partialUpsertMergerClass"),
         "this release does not run Java classes: remove it, and choose strategies"),
    Rule("transforms of other functions", _foreign_functions,
         f"this release supports operators, CASE and the functions {', '.join(FUNCTIONS)}: use "
         "only these, or remove the transform"),
    Rule("comparison type", _incomparable,
         "this release compares by a single number, time, string or bytes value: name such a "
         "column"),
    Rule("compaction of deletes",
         lambda c: _if(c.table.compaction.ids.endswith("_WITH_DELETE"),
                       f"'task.{COMPACTION}.validDocIdsType' is {c.table.compaction.ids!r}"),
         "a late row restores a deleted key if the delete is forgotten immediately: use SNAPSHOT, "
         "and 'deletedKeysTTL' to forget deletes"),
    Rule("TTL of fractions", _ttl_of_fractions,
         "this release supports a TTL only with a comparison column of type INT, LONG or "
         "TIMESTAMP: name such a column, or remove the TTL"),
    Rule("TTL below 1",
         lambda c: _if(any(0 < value < 1 for value in c.ttls.values()), _ttl_text(c)),
         "this release supports only integers, 1 or more: round it up, or remove it"),
    Rule("UUIDs in partitions",
         lambda c: _if(c.upsert.hash_function == "UUID"
                       and max([*c.table.partitions.values(), 1]) > 1,
                       f"'hashFunction' is 'UUID' and there are {dict(c.table.partitions)} "
                       "partitions"),
         "this release puts different spellings of one UUID into different buckets: use one "
         "partition, or spell UUIDs uniformly and use another hash function"),
    Rule("several numbers of partitions",
         lambda c: _if(len({*c.table.partitions.values()}) > 1,
                       f"'columnPartitionMap' has {dict(c.table.partitions)}"),
         "this release supports one number of partitions per table: name one column"),
)  # fmt: skip
"""Valid settings that this release does not support."""

IDLE = (
    "snapshot", "preload", "consistencyMode", "upsertViewRefreshIntervalMs",
    "newSegmentTrackingTimeMs", "enableCommitTimeCompaction",
    "allowPartialUpsertConsumptionDuringCommit", "metadataManagerClass", "metadataManagerConfigs",
)  # fmt: skip
"""Members of `upsertConfig` about servers with in-memory indexes, which Keytide does not have."""
