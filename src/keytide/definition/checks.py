"""Checks of a table's definition beyond its structure, and its completion.

They include which tables can be published in other formats, according to their definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from keytide.base.row_kind import ROW_KIND
from keytide.definition import column_rules
from keytide.definition.kind import check_distribution, check_post_merge, kind_of
from keytide.definition.times import PartitionTimes, TagPeriod
from keytide.errors import InvalidError, UnsupportedError
from keytide.format import delta_log as delta
from keytide.format import iceberg_metadata as iceberg
from keytide.format import paths
from keytide.format.data_file import FORMATS, physical_schema
from keytide.format.file_index import has_hash
from keytide.format.schema import TableSchema
from keytide.merge.engines import engine_class, engine_of, engines_with
from keytide.merge.functions.registry import (
    DEFAULT_FUNCTION,
    FUNCTION_OPTIONS,
    function_names,
    with_stored_names,
)
from keytide.merge.order import order_of
from keytide.merge.validation import validate_merge_options
from keytide.options import ForOthers, Refused, TableOptions, keys, option_of
from keytide.types import AtomicType, Field, RowType

# -- publishable tables ----------------------------------------------------------------------------


DELTA = "delta"
ICEBERG = "iceberg"

_WHY_NO_COLUMN: Mapping[str, Callable[[Field], str | None]] = {
    DELTA: delta.why_no_column,
    ICEBERG: iceberg.why_no_column,
}


def check_publication(schema: TableSchema, options: TableOptions) -> None:
    """Refuse to publish a table that other readers would read differently than Keytide.

    Raises `UnsupportedError`, which names the column or option.
    """
    option_text = f"'{keys.PUBLISH}' = '{','.join(options.publish)}' cannot be set"
    for form in options.publish:
        reason = why_read_otherwise(schema, options, form)
        if reason is not None:
            raise UnsupportedError(f"{option_text}: {reason}; remove one of them")

    # Refuse two independent writers of Iceberg metadata.
    storage = options.value(keys.METADATA_ICEBERG_STORAGE)
    if ICEBERG in options.publish and storage != "disabled":
        raise UnsupportedError(
            f"{option_text} with '{keys.METADATA_ICEBERG_STORAGE}' = '{storage}', because other "
            "engines would write other metadata to the same folder; remove one of them"
        )
    by_level = dict(options.file_formats_by_level)
    others = {
        keys.FILE_FORMAT: {options.file_format},
        keys.FILE_FORMAT_PER_LEVEL: {*by_level.values()},
    }
    key = next((key for key, formats in others.items() if formats - {"parquet"}), None)
    if options.publish and key is not None:
        raise UnsupportedError(
            f"{option_text} with '{key}' = '{options.raw[key]}': other readers support only "
            "Parquet files; set it to 'parquet', or remove one of them"
        )


def why_read_otherwise(schema: TableSchema, options: TableOptions, form: str) -> str | None:
    """Why readers of a format would see other rows than Keytide. None if they would not."""
    for field in schema.fields:
        reason = _WHY_NO_COLUMN[form](field)
        if reason is not None:
            return f"column {field.name!r} is {field.type.sql()}, and {reason}"
    defaults = column_rules.read_defaults(schema, options)
    if defaults:
        return (
            f"column {next(iter(defaults))!r} has a '{keys.DEFAULT_VALUE}', which other readers "
            "do not return instead of NULL"
        )
    if options.row_lifetime_ms is not None and schema.primary_keys:
        return (
            f"'{keys.RECORD_LEVEL_EXPIRE_TIME}' hides expired rows, which other readers would "
            "still return"
        )
    return None


# -- checks and completion -------------------------------------------------------------------------


_STORABLE = frozenset(
    (
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL",
        "CHAR", "VARCHAR", "BINARY", "VARBINARY", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ",
    )
)  # fmt: skip


def complete_options(schema: TableSchema) -> dict[str, str]:
    """The options to store with a definition: the given ones, and those that follow from them.

    The number of buckets is always stored, with the default of the kind of table. A watermark key
    is stored as a sequence field for every engine, and merge functions are stored under names that
    every engine knows.
    """
    kind = kind_of(schema)
    given = column_rules.with_stored_counts(schema.options)
    named = with_stored_names(given) | kind.implied(schema)
    stored = {keys.BUCKET: kind.default_bucket, keys.FILE_FORMAT: "parquet", **named}
    options = TableOptions.parse(stored)
    if options.watermark_key:
        fields = ",".join(options.watermark_key)
        if options.sequence_field and options.sequence_field != options.watermark_key:
            raise InvalidError(
                f"'{keys.WATERMARK_KEY}' is {fields!r} and '{keys.SEQUENCE_FIELD}' is "
                f"{','.join(options.sequence_field)!r}; both order the same versions, so give "
                "only one of them"
            )
        # Engines that do not know watermark keys then order versions in the same way.
        stored[keys.SEQUENCE_FIELD] = fields
    return stored


def validate_definition(schema: TableSchema, options: TableOptions) -> list[str]:
    """Refuse what cannot work, and return warnings about probable mistakes.

    Raises `InvalidError`, or `UnsupportedError` for types and layouts for which this release cannot
    keep its guarantees.
    """
    check_types(schema)
    check_upsert_keys(schema, options)
    check_dml_watermark(schema, options)
    _check_indexed_alone(schema, options)
    validate_merge_options(schema.fields, schema.primary_keys, schema.partition_keys, options)
    kind_of(schema).check(schema, options)
    check_post_merge(schema, options)
    column_rules.check_generated(schema, options)
    _check_file_formats(schema, options)

    for name in options.bloom_filter_columns:
        if name not in schema.by_name:
            raise InvalidError(
                f"'{keys.FILE_INDEX_BLOOM_FILTER_COLUMNS}' names column {name!r}, which does not "
                f"exist; columns: {', '.join(schema.names)}"
            )
        if not has_hash(schema.field(name).type):
            raise UnsupportedError(
                f"'{keys.FILE_INDEX_BLOOM_FILTER_COLUMNS}' names column {name!r}, which is "
                f"{schema.field(name).type.sql()}; bloom filters support only strings, bytes, "
                "integers, floating-point numbers, dates and times"
            )
    column_rules.read_defaults(schema, options)
    for field in schema.fields:
        if field.default_value is not None:
            column_rules.write_default(field)
    column_rules.check_counted(schema, options)
    check_distribution(schema, options)
    _check_retention(schema, options)
    TagPeriod.of(options)
    if options.tag_batch_name is not None:
        paths.tag_path(options.tag_batch_name)
    check_publication(schema, options)
    return [
        *_idle_options(options),
        *_idle_bucket_options(schema, options),
        *_idle_retention(schema, options),
        *doubts_of_keys(schema, options),
    ]


def check_uses(given: Mapping[str, str]) -> list[str]:
    """Warnings about options that a user sets but that only other engines use.

    Raises `UnsupportedError` for an option that no engine would apply.
    """
    messages = []
    for key, value in given.items():
        option = option_of(key)
        use = None if option is None else option.use_of(value)
        if isinstance(use, Refused):
            raise UnsupportedError(f"'{key}' = '{value}' cannot be set: {use.why}; {use.instead}")
        if isinstance(use, ForOthers):
            messages.append(
                f"Keytide ignores '{key}' and stores it only for other engines: {use.here}"
            )
    return messages


def refuse_same_names(fields: Iterable[Field]) -> None:
    """Refuse columns, or members of a ROW, whose names differ only in case.

    SQL could not distinguish them. Tables of other engines may have them, so this check is for new
    definitions. Raises `InvalidError`.
    """
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise InvalidError(
                f"columns {other!r} and {field.name!r} differ only in case, which SQL does not "
                "distinguish; choose another name"
            )
        if isinstance(field.type, RowType):
            refuse_same_names(field.type.fields)


def check_types(schema: TableSchema) -> None:
    """Raise `InvalidError` or `UnsupportedError` for column types that are not supported here."""
    for field in schema.fields:
        if field.name == ROW_KIND:
            raise InvalidError(
                f"column name {ROW_KIND!r} is reserved for row kinds; choose another name"
            )
        if isinstance(field.type, AtomicType) and field.type.root not in _STORABLE:
            raise UnsupportedError(
                f"column {field.name!r} is {field.type.sql()}, which this release cannot write"
            )


def _check_file_formats(schema: TableSchema, options: TableOptions) -> None:
    """Refuse columns and a codec that a file format does not support.

    Changelog files may have their own format.
    """
    by_level = dict(options.file_formats_by_level)
    for level, word in by_level.items():
        if word not in FORMATS:
            raise InvalidError(
                f"'{keys.FILE_FORMAT_PER_LEVEL}' = '{options.raw[keys.FILE_FORMAT_PER_LEVEL]}': "
                f"found {word!r} for level {level}, expected one of {', '.join(sorted(FORMATS))}"
            )
    formats = {options.file_format, options.changelog_file_format or options.file_format}
    for file_format in formats | {*by_level.values()}:
        FORMATS[file_format].check_columns(physical_schema(schema))
    codecs = {
        keys.FILE_COMPRESSION: (options.file_format, options.file_compression),
        keys.CHANGELOG_FILE_COMPRESSION: (
            options.changelog_file_format or options.file_format,
            options.changelog_file_compression,
        ),
    }
    for key, (file_format, codec) in codecs.items():
        has_avro = file_format == "avro" or (
            key == keys.FILE_COMPRESSION and "avro" in by_level.values()
        )
        if has_avro and codec == "lz4":
            raise UnsupportedError(
                f"'{key}' = 'lz4': other readers do not support Avro files with lz4; use 'zstd' "
                "or 'snappy'"
            )


def _check_retention(schema: TableSchema, options: TableOptions) -> None:
    for least, most, least_key, most_key in (
        (options.snapshots_retained_min, options.snapshots_retained_max,
         keys.SNAPSHOT_NUM_RETAINED_MIN, keys.SNAPSHOT_NUM_RETAINED_MAX),
        (options.least_changelogs, options.most_changelogs,
         keys.CHANGELOG_NUM_RETAINED_MIN, keys.CHANGELOG_NUM_RETAINED_MAX),
    ):  # fmt: skip
        if most is not None and least > most:
            raise InvalidError(
                f"'{least_key}' is {least}, which should not be larger than '{most_key}', which "
                f"is {most}; set both"
            )
    if options.partition_lifetime_ms is not None and not schema.partition_keys:
        raise InvalidError(
            f"'{keys.PARTITION_EXPIRATION_TIME}' requires partition columns, and this table has "
            "none"
        )
    if schema.partition_keys:
        PartitionTimes.of(schema.partition_fields(), options)


def check_upsert_keys(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for watermark and tombstone keys that cannot work: rules R9 to R13."""
    watermark, tombstone = options.watermark_key, options.tombstone_key
    if watermark and not schema.primary_keys:
        raise InvalidError(f"'{keys.WATERMARK_KEY}' requires a primary key")
    if tombstone and not watermark:
        raise InvalidError(f"'{keys.TOMBSTONE_KEY}' requires a '{keys.WATERMARK_KEY}'")
    if len(tombstone) > 1:
        raise InvalidError(
            f"'{keys.TOMBSTONE_KEY}' names {len(tombstone)} columns ({', '.join(tombstone)}); "
            "expected exactly one"
        )
    for role, names in ((keys.WATERMARK_KEY, watermark), (keys.TOMBSTONE_KEY, tombstone)):
        for name in names:
            if name not in schema.names:
                raise InvalidError(
                    f"'{role}' names column {name!r}, which does not exist; columns: "
                    f"{', '.join(schema.names)}"
                )
            if schema.field(name).type.is_nested:
                type_ = schema.field(name).type.sql()
                raise InvalidError(
                    f"'{role}' must name primitive columns: {name!r} is a nested {type_}"
                )
            if name in schema.primary_keys:
                raise InvalidError(
                    f"'{role}' names column {name!r}, which is in the primary key, so all versions "
                    "of a key have the same value; use another column"
                )
    if set(tombstone) & set(watermark):
        raise InvalidError(
            f"column {tombstone[0]!r} cannot be both watermark key and tombstone key"
        )
    if tombstone:
        _check_tombstone(schema.field(tombstone[0]), options.tombstone_string_key_value)
    elif options.tombstone_string_key_value is not None:
        raise InvalidError(f"'{keys.TOMBSTONE_STRING_KEY_VALUE}' requires a '{keys.TOMBSTONE_KEY}'")


def check_dml_watermark(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for a way to fill watermarks that the keys do not allow."""
    policy, watermark = options.dml_watermark, options.watermark_key
    if policy == "copy":
        return
    setting = f"'{keys.UPSERT_DML_WATERMARK}' = '{policy}'"
    if not watermark:
        raise InvalidError(f"{setting} requires a '{keys.WATERMARK_KEY}'")
    types = [schema.field(name).type for name in watermark]
    if policy == "statement-time" and [t.root in _INSTANTS for t in types] != [True]:
        found = ", ".join(f"{n} {t.sql()}" for n, t in zip(watermark, types, strict=True))
        raise InvalidError(
            f"{setting} requires one {' or '.join(_INSTANTS)} column as '{keys.WATERMARK_KEY}', "
            f"found {found}"
        )
    if policy == "statement-time" and options.sequence_sort_order == "descending":
        raise InvalidError(
            f"{setting} makes later statements newer, but '{keys.SEQUENCE_FIELD_SORT_ORDER}' is "
            "'descending'; remove one of them"
        )


_INSTANTS = ("TIMESTAMP", "TIMESTAMP_LTZ")


def _check_indexed_alone(schema: TableSchema, options: TableOptions) -> None:
    """Options that have a meaning only with a key index."""
    if schema.is_indexed:
        return
    if options.delete_record_column is not None:
        raise InvalidError(
            f"'{keys.UPSERT_DELETE_RECORD_COLUMN}' = {options.delete_record_column!r} requires "
            f"'{keys.UPSERT_MODE}'; set it, or use '{keys.TOMBSTONE_KEY}'"
        )
    unset = TableOptions()
    given = [key for key in _OF_INDEXES if options.value(key) != unset.value(key)]
    if given:
        raise InvalidError(
            f"'{given[0]}' = {options.raw[given[0]]!r} requires '{keys.UPSERT_MODE}', because it "
            "needs a key index; set this option, or remove the first"
        )


_OF_INDEXES = (
    keys.UPSERT_ROW_ERRORS, keys.UPSERT_DROP_OUT_OF_ORDER, keys.UPSERT_OUT_OF_ORDER_COLUMN,
    keys.UPSERT_LATE_ROWS, keys.UPSERT_METADATA_TTL, keys.UPSERT_DELETED_KEYS_TTL,
    keys.UPSERT_COMPACTION_PERCENT, keys.UPSERT_COMPACTION_COUNT, keys.UPSERT_COMPACTION_BUFFER,
)  # fmt: skip


def _check_tombstone(field: Field, marker: str | None) -> None:
    assert isinstance(field.type, AtomicType)
    if marker is not None and field.type.root not in ("CHAR", "VARCHAR"):
        raise InvalidError(
            f"'{keys.TOMBSTONE_STRING_KEY_VALUE}' = {marker!r} requires a string column as "
            f"'{keys.TOMBSTONE_KEY}'; {field.name!r} is {field.type.sql()}"
        )
    if marker is None and field.type.root != "BOOLEAN" and not field.type.nullable:
        raise InvalidError(
            f"tombstone key {field.name!r} is {field.type.sql()}: a non-boolean, marker-less "
            "tombstone column must be nullable, or every row would be a deletion"
        )


def doubts_of_keys(schema: TableSchema, options: TableOptions) -> list[str]:
    """Probable mistakes in watermark and tombstone keys (rules R8 and R27)."""
    messages = []
    for name in options.tombstone_key:
        type_ = schema.field(name).type
        if type_.root in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
            messages.append(
                f"tombstone key {name!r} is {type_.sql()}: every value except NULL deletes, even "
                "0. If 0 should not delete, use a BOOLEAN column"
            )
    for name in options.watermark_key:
        type_ = schema.field(name).type
        if type_.root in ("FLOAT", "DOUBLE"):
            messages.append(
                f"watermark key {name!r} is {type_.sql()}: NaN is newer than any number; prefer "
                "a timestamp or an integer"
            )
    return messages


def _idle_options(options: TableOptions) -> list[str]:
    """Options that have no effect with the merge engine of the table."""
    messages = []
    own = FUNCTION_OPTIONS if options.merges_rows else engine_class(options).options
    for key in options.raw:
        option = option_of(key)
        engines = () if option is None or option.key in own else engines_with(option.key)
        if engines:
            messages.append(
                f"'{key}' has no effect: the merge engine is {options.merge_engine!r}, but the "
                f"option is for {' and '.join(map(repr, engines))}"
            )
        elif option is not None and option.functions:
            (column,), _ = option.columns_of(key, "")
            function = function_names([column], options, DEFAULT_FUNCTION)[column]
            if function not in option.functions:
                messages.append(
                    f"'{key}' has no effect: the function of {column!r} is {function!r}, but the "
                    f"option is for {' and '.join(map(repr, option.functions))}"
                )
    return messages


def _idle_retention(schema: TableSchema, options: TableOptions) -> list[str]:
    """Options on levels, changelogs and ages that have no effect in this table."""
    why_apart, messages = None, []
    is_asked = options.compactions_tell or options.version_retention_ms is not None
    if is_asked and schema.primary_keys:
        order = order_of(schema.trimmed_primary_keys, schema.fields, options)
        engine = engine_of(order, schema.fields, options, partition_keys=schema.partition_keys)
        why_apart = engine.why_kept_apart
    if options.file_formats_by_level and not kind_of(schema).keeps_versions:
        messages.append(
            f"'{keys.FILE_FORMAT_PER_LEVEL}' has no effect: rows of this table are not merged, so "
            "its files have no levels"
        )
    if options.compactions_tell and why_apart is not None:
        messages.append(
            f"'{keys.CHANGELOG_PRODUCER}' = '{options.changelog_producer}' has no effect: "
            "compactions would create the changelog, but in this table they merge nothing: "
            f"{why_apart}. changes(mode='diff') and follow() need no changelog"
        )
    if options.row_lifetime_ms is not None and not schema.primary_keys:
        messages.append(
            f"'{keys.RECORD_LEVEL_EXPIRE_TIME}' has no effect: rows expire only in tables with a "
            "primary key"
        )
    if options.version_retention_ms is not None and why_apart is None:
        messages.append(
            f"'{keys.VERSION_RETENTION}' has no effect: compactions merge all versions of a key"
        )
    return messages


def _idle_bucket_options(schema: TableSchema, options: TableOptions) -> list[str]:
    """Options for one kind of buckets, in a table with another kind."""
    has_key = bool(schema.primary_keys)
    if has_key and options.bucket == -1:
        idle = {keys.BUCKET_FUNCTION_TYPE: "a fixed number"}
    else:
        idle = dict.fromkeys(keys.DYNAMIC_BUCKET, "'-1' in a table with a primary key")
    if not has_key or options.bucket != -2:
        idle[keys.POSTPONE_DEFAULT_BUCKET_NUM] = "'-2' in a table with a primary key"
    messages = []
    for key, wanted in idle.items():
        option = option_of(key)
        if key not in options.raw or option is None or option.key not in idle:
            continue
        if option.parse(key, options.raw[key]) != option.default_value:
            messages.append(
                f"'{key}' has no effect: '{keys.BUCKET}' is '{options.bucket}', but the option is "
                f"for {wanted}"
            )
    return messages
