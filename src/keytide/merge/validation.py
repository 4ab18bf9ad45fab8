"""Checks which merge options are compatible, when a table is created or altered.

This reads no rows. Every message names the option, the value found and how to fix it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from keytide.errors import InvalidError
from keytide.format.arrow import polars_type
from keytide.merge.engines import ENGINES, engine_class
from keytide.merge.padding import padded_sequence
from keytide.merge.sequence_group import sequence_groups_of
from keytide.options import TableOptions, keys, option_of
from keytide.types import Field, RowType

__all__ = ["validate_merge_options"]


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
    _check_engine(options)
    _check_primary_key(primary_keys, options)
    _check_changelog(primary_keys, options)
    _check_field_options(columns, options)
    _check_sequence_fields(columns, primary_keys, partition_keys, options)
    _check_padding(columns, options)
    _check_rowkind_field(columns, options)
    _check_groups(columns, primary_keys, options)
    engine_class(options).check(columns, primary_keys, options)
    _check_deletion_vectors(options)
    _check_bucket_key(columns, primary_keys, partition_keys, options)
    _check_record_level_expire(columns, options)
    _check_retention(options)


def _check_engine(options: TableOptions) -> None:
    if options.merge_engine not in ENGINES:
        raise InvalidError(
            f"option {keys.MERGE_ENGINE!r} has the value {options.merge_engine!r}; expected one of "
            f"{', '.join(ENGINES)}"
        )


# -- keys and changes ------------------------------------------------------------------------------


def _check_primary_key(primary_keys: Sequence[str], options: TableOptions) -> None:
    if options.primary_key_nullable and not primary_keys:
        raise InvalidError(
            f"Option '{keys.PRIMARY_KEY_NULLABLE}' can only be enabled for a table with primary "
            "keys. Give the table a primary key, or remove the option"
        )


def _check_changelog(primary_keys: Sequence[str], options: TableOptions) -> None:
    producer = options.changelog_producer
    if producer != "none" and not primary_keys:
        raise InvalidError(
            f"Can not set {keys.CHANGELOG_PRODUCER} on table without primary keys, found "
            f"'{producer}'. Give the table a primary key, or remove the option"
        )
    if producer == "lookup" and keys.FULL_COMPACTION_DELTA_COMMITS in options.raw:
        raise InvalidError(
            f"'{keys.FULL_COMPACTION_DELTA_COMMITS}' is incompatible with "
            f"'{keys.CHANGELOG_PRODUCER}'='lookup'; remove it"
        )
    if not options.value(keys.STREAMING_READ_OVERWRITE):
        return
    if producer in ("lookup", "full-compaction"):
        raise InvalidError(
            f"Cannot set {keys.STREAMING_READ_OVERWRITE} to true when changelog producer is "
            "full-compaction or lookup because it will read duplicated changes; set it to 'false'"
        )
    if not primary_keys:
        raise InvalidError(
            "Doesn't support streaming read the changes from overwrite when the primary keys are "
            f"not defined; set '{keys.STREAMING_READ_OVERWRITE}' to 'false'"
        )


def _check_deletion_vectors(options: TableOptions) -> None:
    producer = options.changelog_producer
    if options.deletion_vectors_enabled and producer == "full-compaction":
        raise InvalidError(
            "Deletion vectors mode is only supported for NONE/INPUT/LOOKUP changelog producer now. "
            f"Found '{keys.CHANGELOG_PRODUCER}' = '{producer}' with "
            f"'{keys.DELETION_VECTORS_ENABLED}' = 'true'"
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
            f"Cannot define '{keys.BUCKET_KEY}' with bucket = -1, found {','.join(key)!r}; give "
            f"'{keys.BUCKET}' a fixed number"
        )
    for name in key:
        if name not in columns:
            raise _unknown_field(name, f"'{keys.BUCKET_KEY}'", columns)
        if columns[name].type.is_nested:
            raise InvalidError(
                f"nested type can not in {keys.BUCKET_KEY}, but column {name!r} is "
                f"{columns[name].type.sql()}; name primitive columns"
            )
        if name in partition_keys:
            raise InvalidError(
                f"Bucket keys {list(key)} should not contain partition keys "
                f"{list(partition_keys)}, found {name!r}; a partition has buckets of its own"
            )
        if primary_keys and name not in primary_keys:
            raise InvalidError(
                f"Primary keys {list(primary_keys)} should contain all bucket keys {list(key)}, "
                f"but {name!r} is missing: versions of a key have to share a bucket"
            )


def _check_record_level_expire(columns: dict[str, Field], options: TableOptions) -> None:
    name = options.value(keys.RECORD_LEVEL_TIME_FIELD)
    if name is None:
        if keys.RECORD_LEVEL_EXPIRE_TIME in options.raw:
            raise InvalidError(
                "You should set time field for record-level expire. Name a column in "
                f"'{keys.RECORD_LEVEL_TIME_FIELD}'"
            )
        return
    if name not in columns:
        raise InvalidError(
            f"Can not find time field {name} for record level expire. "
            f"'{keys.RECORD_LEVEL_TIME_FIELD}' must be one of {', '.join(columns)}"
        )
    if columns[name].type.root not in ("INT", "BIGINT", "TIMESTAMP", "TIMESTAMP_LTZ"):
        raise InvalidError(
            "The record level time field type should be one of INT, BIGINT, or TIMESTAMP, but "
            f"field {name!r} of '{keys.RECORD_LEVEL_TIME_FIELD}' is {columns[name].type.sql()}"
        )


# -- order -----------------------------------------------------------------------------------------


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
                f"Sequence field: '{name}' can not be found in table schema. "
                f"'{keys.SEQUENCE_FIELD}' must name some of {', '.join(columns)}"
            )
        if names.count(name) > 1:
            raise InvalidError(f"Sequence field '{name}' is defined repeatedly. Name it once")
        if name in functions:
            raise InvalidError(
                f"Should not define aggregation on sequence field: '{name}'. Leave out "
                f"'{keys.key_of(keys.AGGREGATE_FUNCTION, name)}'"
            )
        _check_comparable(columns[name], keys.SEQUENCE_FIELD)
    if not engine_class(options).follows_sequence:
        engine = options.merge_engine.upper().replace("-", "_")
        raise InvalidError(
            f"Do not support use sequence field on {engine} merge engine. Leave out "
            f"'{keys.SEQUENCE_FIELD}', or use another '{keys.MERGE_ENGINE}'"
        )
    if primary_keys and set(partition_keys) - set(primary_keys):
        raise InvalidError(
            f"You can not use {keys.SEQUENCE_FIELD} in cross partition update case: the primary "
            f"key {list(primary_keys)} lacks some of the partition keys {list(partition_keys)}. "
            "Add them to the primary key"
        )


def _check_snapshot_ordering(primary_keys: Sequence[str], options: TableOptions) -> None:
    if not options.sequence_snapshot_ordering:
        return
    name = keys.SEQUENCE_SNAPSHOT_ORDERING
    if not primary_keys:
        raise InvalidError(f"{name} = true requires a primary-key table")
    if options.sequence_field:
        raise InvalidError(
            f"{name} and {keys.SEQUENCE_FIELD} are mutually exclusive; both say which version is "
            "newer"
        )
    if not options.value(keys.WRITE_ONLY):
        raise InvalidError(f"{name} = true requires {keys.WRITE_ONLY} = true")


def _check_rowkind_field(columns: dict[str, Field], options: TableOptions) -> None:
    name = options.rowkind_field
    if name is None:
        return
    if name not in columns:
        raise InvalidError(
            f"Rowkind field: '{name}' can not be found in table schema. '{keys.ROWKIND_FIELD}' "
            f"must be one of {', '.join(columns)}"
        )
    if columns[name].type.root not in ("CHAR", "VARCHAR"):
        raise InvalidError(
            f"only support string type for rowkind, but '{keys.ROWKIND_FIELD}' = {name!r} is "
            f"{columns[name].type.sql()}"
        )


def _check_comparable(field: Field, option: str) -> None:
    if field.type.is_nested:
        raise InvalidError(
            f"{option!r} must name columns that have an order, but {field.name!r} is "
            f"{field.type.sql()}"
        )


# -- options of fields -----------------------------------------------------------------------------


def _check_field_options(columns: dict[str, Field], options: TableOptions) -> None:
    for key, name in _named_fields(options):
        if name in columns:
            continue
        head = columns.get(name.split(".")[0])
        if head is not None and isinstance(head.type, RowType):
            raise InvalidError(
                f"Nested-field path is not supported on ROW field '{head.name}': option {key!r} "
                "names a member; give the option for the whole column"
            )
        raise _unknown_field(name, f"option {key!r}", columns)


def _named_fields(options: TableOptions) -> Iterator[tuple[str, str]]:
    """Each column option with each of the columns in its key."""
    for key in options.raw:
        if not key.startswith("fields."):
            continue
        option = option_of(key)
        if key.endswith(_GROUP) and not _is_group(key):
            raise InvalidError(
                f"Invalid {_GROUP} option {key!r}; expected '{keys.SEQUENCE_GROUP}', with a column "
                "or several with commas between them"
            )
        if option is None:
            continue
        names, _ = option.columns_of(key, "")
        yield from ((key, name.strip()) for name in names)
        if len(names) > 1 and not option.takes_many:
            raise InvalidError(
                f"option {key!r} names {len(names)} columns; give it once for each of them"
            )


_GROUP = keys.word_of(keys.SEQUENCE_GROUP)


def _is_group(key: str) -> bool:
    columns = keys.columns_in(keys.SEQUENCE_GROUP, key)
    return columns is not None and all(name.strip() for name in columns.split(","))


def _check_groups(
    columns: dict[str, Field], primary_keys: Sequence[str], options: TableOptions
) -> None:
    seen: set[str] = set()
    for group in sequence_groups_of(columns.values(), options):
        key = keys.key_of(keys.SEQUENCE_GROUP, *group.sequence)
        for name in group.protected:
            if name not in columns:
                raise InvalidError(
                    f"Field {name} can not be found in table schema, but option {key!r} protects "
                    f"it; the columns are {', '.join(columns)}"
                )
            if name in seen:
                raise InvalidError(
                    f"Field {name} is defined repeatedly by multiple groups: {group.sequence} is "
                    "the second one. A column follows one sequence"
                )
            seen.add(name)
        for name in group.columns:
            if name in primary_keys:
                raise InvalidError(
                    f"The {_GROUP} '{key}' contains primary key field '{name}' (not "
                    "allowed): a key has one value in all its versions. Leave it out"
                )
        for name in group.sequence:
            _check_comparable(columns[name], key)


def _unknown_field(name: str, where: str, columns: dict[str, Field]) -> InvalidError:
    return InvalidError(
        f"Field {name} can not be found in table schema. It is named in {where}; the columns are "
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


def _check_retention(options: TableOptions) -> None:
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
