"""Checks which merge options are compatible, when a table is created or altered.

This reads no rows. Every message names the option, the value found and how to fix it.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from keytide.errors import InvalidError
from keytide.format.arrow import polars_type
from keytide.merge.engine import sequence_groups_of
from keytide.merge.engines import ENGINES, engine_class
from keytide.merge.order import padded_sequence
from keytide.options import TableOptions, keys, option_of
from keytide.types import Field, RowType


def validate_merge_options(
    fields: Sequence[Field],
    primary_keys: Sequence[str],
    partition_keys: Sequence[str],
    options: TableOptions,
) -> None:
    """Refuse merge options that are invalid for a table with these columns and keys.

    Raises `InvalidError` for the first problem, which can be an unregistered merge function.
    """
    columns = {f.name: f for f in fields}

    if options.merge_engine not in ENGINES:
        raise InvalidError(
            f"option {keys.MERGE_ENGINE!r} has the value {options.merge_engine!r}; expected one of "
            f"{', '.join(ENGINES)}"
        )

    if options.primary_key_nullable and not primary_keys:
        raise InvalidError(
            f"'{keys.PRIMARY_KEY_NULLABLE}' = 'true' needs a primary key, and the table has none. "
            "Define one, or remove the option"
        )
    _check_changelog(primary_keys, options)
    _check_field_options(columns, options)
    _check_sequence_fields(columns, primary_keys, partition_keys, options)
    _check_padding(columns, options)
    _check_rowkind_field(columns, options)
    _check_groups(columns, primary_keys, options)
    engine_class(options).check(columns, primary_keys, options)

    producer = options.changelog_producer
    if options.deletion_vectors_enabled and producer == "full-compaction":
        raise InvalidError(
            f"'{keys.DELETION_VECTORS_ENABLED}' = 'true' does not work with "
            f"'{keys.CHANGELOG_PRODUCER}' = '{producer}'. With deletion vectors, use one of the "
            f"changelog producers none, input and lookup"
        )
    _check_bucket_key(columns, primary_keys, partition_keys, options)
    _check_retention(columns, options)


# -- keys and changes ------------------------------------------------------------------------------


def _check_changelog(primary_keys: Sequence[str], options: TableOptions) -> None:
    producer = options.changelog_producer
    if producer != "none" and not primary_keys:
        raise InvalidError(
            f"'{keys.CHANGELOG_PRODUCER}' = '{producer}' needs a primary key, and the table has "
            f"none. Define one, or remove the option"
        )
    if producer == "lookup" and keys.FULL_COMPACTION_DELTA_COMMITS in options.raw:
        raise InvalidError(
            f"'{keys.CHANGELOG_PRODUCER}'='lookup' writes changelogs without full compactions, so "
            f"it is incompatible with '{keys.FULL_COMPACTION_DELTA_COMMITS}'; remove one of them"
        )
    if not options.value(keys.STREAMING_READ_OVERWRITE):
        return
    if producer in ("lookup", "full-compaction"):
        raise InvalidError(
            f"'{keys.STREAMING_READ_OVERWRITE}' = 'true' would report changes twice, because the "
            f"changelog producer {producer} also reports those of overwrites; set it to 'false'"
        )
    if not primary_keys:
        raise InvalidError(
            f"'{keys.STREAMING_READ_OVERWRITE}' = 'true' needs a primary key, and the table has "
            f"none; set it to 'false'"
        )


def _check_bucket_key(
    columns: dict[str, Field],
    primary_keys: Sequence[str],
    partition_keys: Sequence[str],
    options: TableOptions,
) -> None:
    key = options.bucket_key
    if not key:
        return
    if options.bucket == -1:
        raise InvalidError(
            f"'{keys.BUCKET_KEY}' = {','.join(key)!r} needs a fixed number of buckets, and "
            f"'{keys.BUCKET}' is -1; set a number, or remove '{keys.BUCKET_KEY}'"
        )
    for name in key:
        if name not in columns:
            raise _unknown_field(name, f"'{keys.BUCKET_KEY}'", columns)
        if columns[name].type.is_nested:
            raise InvalidError(
                f"'{keys.BUCKET_KEY}' names the column {name!r} of type "
                f"{columns[name].type.sql()}; expected columns of primitive types"
            )
        if name in partition_keys:
            raise InvalidError(
                f"'{keys.BUCKET_KEY}' names the partition column {name!r}. Each partition has its "
                f"own buckets, so name columns other than {list(partition_keys)}"
            )
        if primary_keys and name not in primary_keys:
            raise InvalidError(
                f"'{keys.BUCKET_KEY}' names {name!r}, which is not in the primary key "
                f"{list(primary_keys)}. All versions of a key must be in the same bucket, so name "
                f"key columns only"
            )


def _check_retention(columns: dict[str, Field], options: TableOptions) -> None:
    name = options.value(keys.RECORD_LEVEL_TIME_FIELD)
    if name is None and keys.RECORD_LEVEL_EXPIRE_TIME in options.raw:
        raise InvalidError(
            f"'{keys.RECORD_LEVEL_EXPIRE_TIME}' needs '{keys.RECORD_LEVEL_TIME_FIELD}': the "
            f"column that contains the time of a row"
        )
    if name is not None and name not in columns:
        raise InvalidError(
            f"'{keys.RECORD_LEVEL_TIME_FIELD}' names the field {name!r}, which does not exist. "
            f"Rows expire by one of the columns {', '.join(columns)}"
        )
    times = ("INT", "BIGINT", "TIMESTAMP", "TIMESTAMP_LTZ")
    if name is not None and columns[name].type.root not in times:
        raise InvalidError(
            f"'{keys.RECORD_LEVEL_TIME_FIELD}' names the column {name!r} of type "
            f"{columns[name].type.sql()}; expected INT, BIGINT or TIMESTAMP"
        )

    given = {
        keys.TOMBSTONE_RETENTION: options.tombstone_retention_ms,
        keys.VERSION_RETENTION: options.version_retention_ms,
    }
    for key, retention_ms in given.items():
        if retention_ms is not None and options.sequence_auto_padding:
            raise InvalidError(
                f"'{key}' goes by sequence numbers that grow from commit to commit, and "
                f"'{keys.SEQUENCE_AUTO_PADDING}' takes them from the rows; leave one of them out"
            )


# -- order of versions -----------------------------------------------------------------------------


def _check_sequence_fields(
    columns: dict[str, Field],
    primary_keys: Sequence[str],
    partition_keys: Sequence[str],
    options: TableOptions,
) -> None:
    _check_snapshot_ordering(primary_keys, options)
    names = options.sequence_field
    if not names:
        return
    functions = options.by_columns(keys.AGGREGATE_FUNCTION)
    for name in names:
        if name not in columns:
            raise InvalidError(
                f"'{keys.SEQUENCE_FIELD}' names the column '{name}', which does not exist. The "
                f"columns are {', '.join(columns)}"
            )
        if names.count(name) > 1:
            raise InvalidError(f"'{keys.SEQUENCE_FIELD}' names the sequence field '{name}' twice")
        if name in functions:
            raise InvalidError(
                f"the sequence field '{name}' cannot have an aggregate function. Remove "
                f"'{keys.key_of(keys.AGGREGATE_FUNCTION, name)}'"
            )
        _check_comparable(columns[name], keys.SEQUENCE_FIELD)
    if not engine_class(options).follows_sequence:
        raise InvalidError(
            f"the merge engine {options.merge_engine} does not use sequence fields. Remove "
            f"'{keys.SEQUENCE_FIELD}', or use another '{keys.MERGE_ENGINE}'"
        )
    if primary_keys and set(partition_keys) - set(primary_keys):
        raise InvalidError(
            f"'{keys.SEQUENCE_FIELD}' cannot order updates that move a key to another partition. "
            f"The primary key {list(primary_keys)} lacks some of the partition columns "
            f"{list(partition_keys)}; add them to it"
        )


def _check_snapshot_ordering(primary_keys: Sequence[str], options: TableOptions) -> None:
    if not options.sequence_snapshot_ordering:
        return
    name = keys.SEQUENCE_SNAPSHOT_ORDERING
    if not primary_keys:
        raise InvalidError(f"'{name}' = 'true' needs a primary key, and the table has none")
    if options.sequence_field:
        raise InvalidError(
            f"'{name}' and '{keys.SEQUENCE_FIELD}' both define which version is newer; remove one "
            "of them"
        )
    if not options.value(keys.WRITE_ONLY):
        raise InvalidError(f"'{name}' = 'true' requires '{keys.WRITE_ONLY}' = 'true'")


def _check_rowkind_field(columns: dict[str, Field], options: TableOptions) -> None:
    name = options.rowkind_field
    if name is None:
        return
    if name not in columns:
        raise InvalidError(
            f"'{keys.ROWKIND_FIELD}' names the column '{name}', which does not exist. The columns "
            f"are {', '.join(columns)}"
        )
    if columns[name].type.root not in ("CHAR", "VARCHAR"):
        raise InvalidError(
            f"'{keys.ROWKIND_FIELD}' names the column {name!r} of type "
            f"{columns[name].type.sql()}; expected a string type"
        )


def _check_comparable(field: Field, option: str) -> None:
    if field.type.is_nested:
        raise InvalidError(
            f"{option!r} must name columns that have an order, but {field.name!r} is "
            f"{field.type.sql()}"
        )


# -- options of fields -----------------------------------------------------------------------------


def _check_field_options(columns: dict[str, Field], options: TableOptions) -> None:
    for key in options.raw:
        if not key.startswith("fields."):
            continue
        option = option_of(key)
        if key.endswith(_GROUP):
            grouped = keys.columns_in(keys.SEQUENCE_GROUP, key)
            if grouped is None or not all(name.strip() for name in grouped.split(",")):
                raise InvalidError(
                    f"Invalid {_GROUP} option {key!r}; expected '{keys.SEQUENCE_GROUP}', with a "
                    "column or several with commas between them"
                )
        if option is None:
            continue
        names, _ = option.columns_of(key, "")
        for name in (name.strip() for name in names):
            if name in columns:
                continue
            head = columns.get(name.split(".")[0])
            if head is not None and isinstance(head.type, RowType):
                raise InvalidError(
                    f"option {key!r} names a nested field of the ROW column '{head.name}'; set the "
                    "option for the whole column"
                )
            raise _unknown_field(name, f"option {key!r}", columns)
        if len(names) > 1 and not option.takes_many:
            raise InvalidError(
                f"option {key!r} names {len(names)} columns; give it once for each of them"
            )


_GROUP = keys.word_of(keys.SEQUENCE_GROUP)


def _check_groups(
    columns: dict[str, Field], primary_keys: Sequence[str], options: TableOptions
) -> None:
    seen: set[str] = set()
    for group in sequence_groups_of(columns.values(), options):
        key = keys.key_of(keys.SEQUENCE_GROUP, *group.sequence)
        for name in group.protected:
            if name not in columns:
                raise InvalidError(
                    f"option {key!r} protects the field {name!r}, which does not exist; the "
                    f"columns are {', '.join(columns)}"
                )
            if name in seen:
                raise InvalidError(
                    f"the field {name!r} is repeated in multiple groups: {group.sequence} is the "
                    "second one. A column can follow only one"
                )
            seen.add(name)
        for name in group.columns:
            if name in primary_keys:
                raise InvalidError(
                    f"the {_GROUP} option '{key}' names the primary key field '{name}', whose "
                    f"value is the same in all versions of a key. Remove it from the group"
                )
        for name in group.sequence:
            _check_comparable(columns[name], key)


def _unknown_field(name: str, where: str, columns: dict[str, Field]) -> InvalidError:
    return InvalidError(
        f"{where} names the field {name!r}, which does not exist. The columns are "
        f"{', '.join(columns)}"
    )


def _check_padding(columns: dict[str, Field], options: TableOptions) -> None:
    paddings = options.sequence_auto_padding
    if not paddings:
        return
    if not options.sequence_field:
        raise InvalidError(
            f"'{keys.SEQUENCE_AUTO_PADDING}' = '{','.join(paddings)}' makes numbers of the "
            f"sequence field, and there is none; set '{keys.SEQUENCE_FIELD}', or leave it out"
        )
    field = columns[options.sequence_field[0]]
    nothing = pl.Series(field.name, [], polars_type(field))
    padded_sequence(
        nothing, pl.Series([], dtype=pl.Boolean), pl.Series([], dtype=pl.Int64), paddings
    )
