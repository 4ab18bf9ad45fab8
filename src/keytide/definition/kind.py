"""Kinds of tables: what a primary key, or its absence, means for readers and writers.

A kind answers three questions:

1. Is there at most one row per key?
2. Do files store versions of keys, sorted by key, each with a sequence number and a kind, which are
   merged on read? Or do they store rows in order of arrival, so that each file can be read
   separately?
3. Can a written row remove another one?

For a table with a primary key, all answers are yes. For an append table, all are no. Another kind
is another class here.

In a table with a key index, rows can be merged at write time. Some columns are then computed from
the merged row.

A kind also says whether the rows of a write can be distributed over tasks in any way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from graphlib import CycleError, TopologicalSorter
from typing import ClassVar

from keytide.base.dataclass import dataclass
from keytide.definition.column_rules import check_marking_columns
from keytide.definition.times import check_times_to_live
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.schema import TableSchema
from keytide.merge.engine import PartitionChangePolicy, check_functions
from keytide.merge.engines import engine_class
from keytide.merge.functions.registry import DEFAULT_FUNCTION, FUNCTION_OPTIONS, function_names
from keytide.options import SECTIONS, Acts, TableOptions, keys, option_of
from keytide.predicate.row_expression import RowExpression, row_expression
from keytide.types import Field

# -- merging at write time -------------------------------------------------------------------------


def merged_fields(schema: TableSchema, options: TableOptions) -> tuple[Field, ...]:
    """The columns that are merged: all except those by which rows are found, compared or marked."""
    fixed = {*schema.primary_keys, *options.sequence_field, options.out_of_order_column}
    return tuple(field for field in schema.fields if field.name not in fixed)


# -- kinds of tables -------------------------------------------------------------------------------


class TableKind(ABC):
    """How one kind of table differs from the others."""

    has_key: ClassVar[bool]
    """Whether a primary key identifies each row, so that readers see at most one row per key."""

    keeps_versions: ClassVar[bool]
    """Whether files store versions of keys, with system columns, and are merged on read."""

    takes_deletes: ClassVar[bool]
    """Whether rows of kinds other than +I can be written, which replace the row of a key."""

    default_bucket: ClassVar[str]
    """The default of the option 'bucket' for new tables."""

    has_key_index: ClassVar[bool] = False
    """Whether an index says where the current row of each key is."""

    is_changed_by_key: ClassVar[bool]
    """Whether a statement changes rows by writing them under their keys, or by their positions."""

    def implied(self, schema: TableSchema) -> dict[str, str]:
        """Options that follow from the kind of table, and are stored with it."""
        return {}

    @abstractmethod
    def check(self, schema: TableSchema, options: TableOptions) -> None:
        """Refuse a layout or options that cannot work.

        Raises `InvalidError`, or `UnsupportedError` for what this release does not support.
        """

    @abstractmethod
    def why_not_writable(self, options: TableOptions) -> str | None:
        """Why this release must not write to such a table. None if it can."""


class KeyedTable(TableKind):
    """A table with a primary key."""

    has_key = True
    keeps_versions = True
    is_changed_by_key = True
    takes_deletes = True
    # With dynamic buckets, the format's default, other engines support only one writer.
    default_bucket = "1"

    def check(self, schema: TableSchema, options: TableOptions) -> None:
        """See `TableKind`."""
        missing = [n for n in schema.partition_keys if n not in schema.primary_keys]
        if missing and (options.bucket != -1 or len(missing) < len(schema.partition_keys)):
            raise UnsupportedError(
                f"the primary key {', '.join(schema.primary_keys)} does not contain the "
                f"partition columns {', '.join(missing)}: a key could be in two partitions. Add "
                "them to the primary key, or partition by a key column; or remove all partition "
                f"columns from the key and set '{keys.BUCKET}' to '-1', so that keys move "
                "between partitions"
            )
        reason = why_in_both_partitions(schema, options)
        if reason is not None:
            raise UnsupportedError(reason)
        reason = _why_no_buckets(options)
        if reason is not None:
            raise UnsupportedError(f"{reason}; set '{keys.BUCKET}' to 1 or more")
        reason = _why_no_vectors(options) if options.deletion_vectors_enabled else None
        if reason is not None:
            raise UnsupportedError(f"{reason}; remove '{keys.DELETION_VECTORS_ENABLED}'")

    def why_not_writable(self, options: TableOptions) -> str | None:
        """See `TableKind`."""
        reason = _why_no_buckets(options)
        if reason is not None:
            return reason
        if options.sequence_auto_padding and not options.sequence_field:
            return f"'{keys.SEQUENCE_AUTO_PADDING}' without a '{keys.SEQUENCE_FIELD}'"
        if options.deletion_vectors_enabled:
            return _why_no_vectors(options)
        return None


def _why_no_vectors(options: TableOptions) -> str | None:
    """Why rows of a table with deletion vectors could not be moved to where readers look."""
    if options.value(keys.PK_CLUSTERING_OVERRIDE):
        return f"'{keys.PK_CLUSTERING_OVERRIDE}' = 'true' sorts files by other columns than the key"
    if options.value(keys.INDEX_FILE_IN_DATA_FILE_DIR):
        return (
            f"'{keys.INDEX_FILE_IN_DATA_FILE_DIR}' = 'true' stores deletion vectors next to the "
            "data, which this release does not support"
        )
    return None


def why_in_both_partitions(schema: TableSchema, options: TableOptions) -> str | None:
    """Why a key that moves to another partition would also stay in the previous one."""
    can_move = options.bucket == -1 and schema.is_cross_partition
    if not (can_move and options.ignore_delete):
        return None
    if engine_class(options).on_partition_change is not PartitionChangePolicy.MOVES:
        return None
    return (
        f"'{keys.IGNORE_DELETE}' ignores the delete that is written when a key moves to another "
        "partition, so the key would be in both; remove it, or add the columns "
        f"{', '.join(schema.partition_keys)} to the primary key"
    )


def _why_no_buckets(options: TableOptions) -> str | None:
    """Why rows cannot be assigned to buckets as the options require. None if they can."""
    if options.bucket == -1 and options.value(keys.INDEX_FILE_IN_DATA_FILE_DIR):
        return (
            f"'{keys.INDEX_FILE_IN_DATA_FILE_DIR}' = 'true' stores the dynamic bucket index next "
            "to the data, which this release does not support"
        )
    return None


class AppendTable(TableKind):
    """A table without a primary key: rows are added, and do not change until they are removed."""

    has_key = False
    keeps_versions = False
    is_changed_by_key = False
    takes_deletes = False
    default_bucket = "-1"  # no buckets: rows need not be grouped

    def check(self, schema: TableSchema, options: TableOptions) -> None:
        """See `TableKind`."""
        for key, text in options.raw.items():
            option = option_of(key)
            if option in _OF_VERSIONS and option.parse(key, text) != option.default_value:
                raise InvalidError(
                    f"'{key}' = '{text}' is about merging versions of a key, but the table has "
                    "no primary key: add one, or remove the option"
                )
        reason = _why_no_vectors(options) if options.deletion_vectors_enabled else None
        if reason is not None:
            raise UnsupportedError(f"{reason}; remove '{keys.DELETION_VECTORS_ENABLED}'")
        if options.deletion_vectors_merge_on_read:
            raise InvalidError(
                f"'{keys.DELETION_VECTORS_MERGE_ON_READ}' = 'true' is about merging versions of "
                "a key, but the table has no primary key; remove it"
            )
        if options.bucket < -1:
            raise InvalidError(
                f"'{keys.BUCKET}' = '{options.bucket}' requires a primary key; remove it, or set "
                f"it to 1 or more together with '{keys.BUCKET_KEY}'"
            )
        if options.bucket > 0 and not options.bucket_key:
            raise InvalidError(
                f"You should define a '{keys.BUCKET_KEY}' for bucketed append mode: "
                f"'{keys.BUCKET}' is '{options.bucket}', and there is no primary key that could "
                f"determine the bucket. Set it, or remove '{keys.BUCKET}'"
            )

    def why_not_writable(self, options: TableOptions) -> str | None:
        """See `TableKind`."""
        if options.bucket > 0 and not options.bucket_key:
            return f"'{keys.BUCKET}' = '{options.bucket}' without a '{keys.BUCKET_KEY}'"
        return _why_no_vectors(options) if options.deletion_vectors_enabled else None


# Options about versions that also apply to rows, so append tables may have them.
_KEPT = (
    keys.ROWKIND_FIELD, keys.IGNORE_DELETE, keys.IGNORE_UPDATE_BEFORE, keys.DEFAULT_VALUE,
    keys.USER,
)  # fmt: skip
_OF_VERSIONS = [
    option
    for section in ("Ordering and merging", "Columns")
    for option in SECTIONS[section]
    if isinstance(option.use, Acts) and option.key not in _KEPT
]


class IndexedTable(TableKind):
    """A table with a primary key and an index of its keys. Its rows need no merge.

    For other engines, it is an append table with deletion vectors.
    """

    has_key = True
    keeps_versions = False
    takes_deletes = True
    default_bucket = "1"
    has_key_index = True
    is_changed_by_key = True

    def implied(self, schema: TableSchema) -> dict[str, str]:
        """The key, in an option that other engines do not interpret, and options that other engines
        enforce.
        """
        vectors = schema.options.get(keys.DELETION_VECTORS_ENABLED, "true")
        if vectors.lower() != "true":
            raise InvalidError(
                f"'{keys.DELETION_VECTORS_ENABLED}' = '{vectors}': '{keys.UPSERT_MODE}' already "
                "uses deletion vectors for replaced rows; remove the option"
            )
        for name in schema.primary_keys:
            if "," in name or name != name.strip():
                raise InvalidError(
                    f"column {name!r} cannot be in the primary key of a table with "
                    f"'{keys.UPSERT_MODE}', which stores the names of the key as a comma-separated "
                    "list; choose a name without commas and without leading or trailing blanks"
                )
        named = [name for name in schema.primary_keys if name not in schema.partition_keys]
        return {
            keys.UPSERT_KEY: ",".join(schema.primary_keys),
            keys.BUCKET_KEY: schema.options.get(keys.BUCKET_KEY, ",".join(named)),
            keys.DELETION_VECTORS_ENABLED: "true",
        }

    def check(self, schema: TableSchema, options: TableOptions) -> None:
        """See `TableKind`."""
        self._check_layout(schema, options)
        for key, text in options.raw.items():
            option = option_of(key)
            if options.merges_rows and option in _OF_MERGING_ROWS:
                continue
            if option in _OF_MERGING and option.parse(key, text) != option.default_value:
                raise InvalidError(
                    f"'{key}' = '{text}' is about merging versions of a key, which tables with "
                    f"'{keys.UPSERT_MODE}' = '{options.upsert_mode}' do not do; remove one of "
                    "them"
                )
        if options.changelog_producer != "none":
            raise InvalidError(
                f"'{keys.CHANGELOG_PRODUCER}' = '{options.changelog_producer}': a table with "
                f"'{keys.UPSERT_MODE}' returns its changes without a changelog; remove it"
            )
        check_marking_columns(schema, options)
        check_times_to_live(schema, options)
        if not options.merges_rows:
            return
        merged = {field.name: field for field in merged_fields(schema, options)}
        for name, function in options.by_columns(keys.AGGREGATE_FUNCTION).items():
            if name in schema.by_name and name not in merged:
                raise InvalidError(
                    f"'{keys.key_of(keys.AGGREGATE_FUNCTION, name)}' = {function!r}: column "
                    f"{name!r} identifies, orders or marks rows, so it is not merged; remove the "
                    "option"
                )
        check_functions(merged, function_names(merged, options, DEFAULT_FUNCTION), options)

    def _check_layout(self, schema: TableSchema, options: TableOptions) -> None:
        missing = [n for n in schema.partition_keys if n not in schema.primary_keys]
        if missing:
            raise UnsupportedError(
                f"the primary key {', '.join(schema.primary_keys)} does not contain the "
                f"partition columns {', '.join(missing)}: a key could be in two partitions. Add "
                "them to the primary key"
            )
        if options.bucket < 1:
            raise UnsupportedError(
                f"'{keys.UPSERT_MODE}' = '{options.upsert_mode}' requires a fixed number of "
                f"buckets, found '{keys.BUCKET}' = '{options.bucket}'; set it to 1 or more"
            )
        if options.upsert_hash_function == "uuid" and options.bucket > 1:
            raise UnsupportedError(
                f"'{keys.UPSERT_HASH_FUNCTION}' = 'uuid' treats different spellings of a UUID as "
                f"the same key, but they could go to different buckets; set '{keys.BUCKET}' to "
                "'1', or write UUIDs in one spelling and remove the function"
            )
        if options.primary_key_nullable:
            raise UnsupportedError(
                f"'{keys.PRIMARY_KEY_NULLABLE}' = 'true' cannot be combined with "
                f"'{keys.UPSERT_MODE}', because a key index does not support NULL; remove one of "
                "them"
            )
        reason = _why_no_vectors(options)
        if reason is not None:
            raise UnsupportedError(f"{reason}; remove it")

    def why_not_writable(self, options: TableOptions) -> str | None:
        """See `TableKind`."""
        return _why_no_vectors(options)


# Options about versions that also apply to a key index.
_INDEXED_BY = (
    keys.SEQUENCE_FIELD, keys.SEQUENCE_FIELD_SORT_ORDER, keys.WATERMARK_KEY, keys.TOMBSTONE_KEY,
    keys.TOMBSTONE_STRING_KEY_VALUE, keys.UPSERT_DML_WATERMARK, keys.UPSERT_MODE, keys.UPSERT_KEY,
    keys.UPSERT_HASH_FUNCTION, keys.UPSERT_DELETE_RECORD_COLUMN, keys.UPSERT_ROW_ERRORS,
    keys.UPSERT_DROP_OUT_OF_ORDER, keys.UPSERT_LATE_ROWS,
    keys.UPSERT_OUT_OF_ORDER_COLUMN, keys.UPSERT_METADATA_TTL, keys.UPSERT_DELETED_KEYS_TTL,
    keys.UPSERT_COMPACTION_PERCENT, keys.UPSERT_COMPACTION_COUNT, keys.UPSERT_COMPACTION_BUFFER,
)  # fmt: skip
# Column functions are never retracted here, and `count` does not describe a key's row.
_OF_MERGING_ROWS = [
    option_of(key)
    for key in (*FUNCTION_OPTIONS, keys.POST_MERGE_EXPRESSION)
    if key not in (keys.IGNORE_RETRACT, keys.COUNT_VALUES)
]
_OF_MERGING = [option for option in _OF_VERSIONS if option.key not in _INDEXED_BY]


_KEYED, _APPEND, _INDEXED = KeyedTable(), AppendTable(), IndexedTable()


def kind_of(schema: TableSchema) -> TableKind:
    """The kind of a table with this definition."""
    if schema.is_indexed:
        return _INDEXED
    return _KEYED if schema.primary_keys else _APPEND


def require_key(schema: TableSchema, table: str, what: str, way_out: str) -> None:
    """Raise `UnsupportedError` if there is no primary key, which `what` needs."""
    if not kind_of(schema).has_key:
        raise UnsupportedError(
            f"table {table} has no primary key, which {what} requires. {way_out}"
        )


# -- columns computed from the merged row ----------------------------------------------------------


@dataclass(frozen=True)
class ComputedColumn:
    """A column, and the expression that computes its value when a row is merged."""

    field: Field
    expression: RowExpression

    @property
    def option_text(self) -> str:
        """The option that defines it, for messages."""
        key = keys.key_of(keys.POST_MERGE_EXPRESSION, self.field.name)
        return f"'{key}' = {self.expression.text!r}"


def computed_columns(schema: TableSchema, options: TableOptions) -> tuple[ComputedColumn, ...]:
    """The computed columns, each after those that it reads.

    REQUIRES: the options have been checked.
    """
    texts = options.by_columns(keys.POST_MERGE_EXPRESSION)
    if not texts:
        return ()
    read = {name: row_expression(text) for name, text in texts.items()}
    order = TopologicalSorter(
        {name: [c for c in each.columns if c in read] for name, each in read.items()}
    )
    return tuple(ComputedColumn(schema.field(n), read[n]) for n in order.static_order())


def check_post_merge(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for expressions or columns that cannot be used for a computed column."""
    merged = {field.name for field in merged_fields(schema, options)}
    for name, text in options.by_columns(keys.POST_MERGE_EXPRESSION).items():
        option_text = f"'{keys.key_of(keys.POST_MERGE_EXPRESSION, name)}' = {text!r}"
        if not options.merges_rows:
            raise InvalidError(
                f"{option_text} computes a column when a row is merged with an earlier one; set "
                f"'{keys.UPSERT_MODE}' = 'partial', or remove the option"
            )
        if name not in merged - {options.delete_record_column}:
            raise InvalidError(
                f"{option_text}: {name!r} is not a column that is merged: it does not exist, or it "
                "is a key column, a sequence field or a column that marks rows; use another column"
            )
        if not schema.field(name).type.nullable:
            raise InvalidError(
                f"{option_text}: {name!r} is {schema.field(name).type.sql()}, but an expression "
                "can return NULL; make the column nullable"
            )
        _check_expression(schema, name, option_text, text)
    try:
        computed_columns(schema, options)
    except CycleError as error:
        names = ", ".join(map(repr, dict.fromkeys(error.args[1])))
        raise InvalidError(
            f"'{keys.POST_MERGE_EXPRESSION}': columns {names} are computed from each other; "
            "change one of the expressions"
        ) from error


def _check_expression(schema: TableSchema, name: str, option_text: str, text: str) -> None:
    try:
        expression = row_expression(text)
        for column in expression.columns:
            if column not in schema.by_name:
                raise InvalidError(
                    f"it reads {column!r}, which does not exist; columns: {', '.join(schema.names)}"
                )
        if name in expression.columns:
            raise InvalidError("a column cannot be computed from itself; use other columns")
        expression.check(schema.field(name), schema.select(expression.columns))
    except InvalidError as error:
        raise InvalidError(f"{option_text}: {error}") from error


# -- distribution of rows over tasks ---------------------------------------------------------------


def check_distribution(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` if rows must not be shuffled but one task must see all of a bucket."""
    reason = why_brought_together(schema, options)
    if options.write_distribution == "none" and reason is not None:
        raise InvalidError(
            f"'{keys.WRITE_DISTRIBUTION}' = 'none' leaves the rows of a bucket in several tasks, "
            f"but {reason}; set it to 'auto' or 'hash'"
        )


def why_brought_together(schema: TableSchema, options: TableOptions) -> str | None:
    """Why one task must write all rows of a bucket. None if several can."""
    if schema.is_indexed:
        return (
            f"'{keys.UPSERT_MODE}' = '{schema.upsert_mode}' maintains a key index, which needs "
            "all rows of a bucket in order"
        )
    if schema.primary_keys and options.bucket == -1:
        return f"'{keys.BUCKET}' = '-1' requires one task to assign each key"
    if options.counts_out_of_order:
        return f"'{keys.WRITE_COUNT_OUT_OF_ORDER}' compares each row with earlier rows of its key"
    if options.sequence_auto_padding:
        return f"'{keys.SEQUENCE_AUTO_PADDING}' counts the rows of a key one by one"
    return None


# -- external tables, of which only the definition is stored --------------------------------------


EXTERNAL_TABLE = "external-table"
"""The value of the option 'type' in the definition of an external table."""


def is_external(schema: TableSchema) -> bool:
    """Whether a schema defines an external table."""
    return schema.options.get(keys.TYPE) == EXTERNAL_TABLE


def refuse_external(schema: TableSchema, name: str) -> None:
    """Raise `UnsupportedError` for an external table."""
    if is_external(schema):
        raise UnsupportedError(
            f"table {name} is an external table, {schema.options[keys.EXTERNAL_FORMAT]} at "
            f"{schema.options[keys.EXTERNAL_LOCATION]}, "
            "which is read-only in Keytide, so this operation is not supported. Supported are "
            "SELECT and joins, scan, get, get_many, why, changes between versions, refresh, SHOW "
            "CREATE TABLE and DESCRIBE; DROP TABLE deletes only the definition"
        )
