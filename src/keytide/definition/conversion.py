"""Converts the definition of a table to the other kind: merged on read, or with a key index.

Columns and keys stay. Options with the same meaning in both kinds stay too, and options that follow
from the kind are added or removed. Options with an equivalent in the other kind are replaced by it.
Options that do not affect rows are dropped. Everything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from keytide.definition.checks import complete_options, validate_definition
from keytide.definition.kind import kind_of
from keytide.errors import KeytideError, UnsupportedError
from keytide.format.schema import NO_UPSERTS, TableSchema
from keytide.merge.engines import engine_class
from keytide.options import TableOptions, keys

__all__ = ["Definition", "as_kind_of", "converted"]


@dataclass(frozen=True)
class Definition:
    """A definition in the other kind, and the options that it lost."""

    schema: TableSchema
    dropped: tuple[str, ...]

    @classmethod
    def of(cls, before: TableSchema, after: TableSchema) -> Definition:
        """What `after` lost, if it was converted from `before`."""
        gone = {*before.options} - {*after.options} - {*_IMPLIED}
        if keys.TOMBSTONE_KEY in after.options:
            gone.discard(keys.UPSERT_DELETE_RECORD_COLUMN)
        return cls(after, tuple(sorted(gone)))


def converted(schema: TableSchema, upsert_mode: str) -> Definition:
    """A definition with a key index ('full'), or that of a table that merges ('none').

    REQUIRES: it is of the other kind. Raises `UnsupportedError` for a definition without an
    equivalent, with the reason and what to do.
    """
    for reason in _reasons(schema, TableOptions.parse(schema.options), upsert_mode):
        raise UnsupportedError(f"'{keys.UPSERT_MODE}' = '{upsert_mode}' is not possible: {reason}")
    try:
        made = _made(schema, upsert_mode)
        validate_definition(made, TableOptions.parse(made.options))
    except KeytideError as error:
        raise UnsupportedError(
            f"'{keys.UPSERT_MODE}' = '{upsert_mode}' is not possible: {error}. {_NEW_TABLE}"
        ) from error
    return Definition.of(schema, made)


def as_kind_of(schema: TableSchema, other: TableSchema) -> TableSchema:
    """A definition in the kind of another one, to show stored rows of that kind."""
    return schema if kind_of(schema) is kind_of(other) else _made(schema, other.upsert_mode)


def _made(schema: TableSchema, upsert_mode: str) -> TableSchema:
    make = _merging if upsert_mode == NO_UPSERTS else _indexed
    named = replace(schema, options=make(schema))
    return replace(named, options=complete_options(named))


def _indexed(schema: TableSchema) -> dict[str, str]:
    gone = (*_OF_VERSIONS, keys.DELETION_VECTORS_ENABLED, keys.UPSERT_MODE)
    kept = {key: value for key, value in schema.options.items() if key not in gone}
    return {**kept, keys.UPSERT_MODE: "full"}


def _merging(schema: TableSchema) -> dict[str, str]:
    options = TableOptions.parse(schema.options)
    gone = {*_OF_INDEXES, *_IMPLIED} - {keys.BUCKET_KEY}
    if list(options.bucket_key) == _unpartitioned_key(schema):
        gone.add(keys.BUCKET_KEY)
    kept = {key: value for key, value in schema.options.items() if key not in gone}
    if options.delete_record_column is None or not options.sequence_field:
        return kept
    marked = {keys.TOMBSTONE_KEY: options.delete_record_column}
    return {**kept, keys.WATERMARK_KEY: ",".join(options.sequence_field), **marked}


def _unpartitioned_key(schema: TableSchema) -> list[str]:
    """The columns whose hash determines the bucket by default."""
    return [name for name in schema.primary_keys if name not in schema.partition_keys]


# -- what prevents a conversion --------------------------------------------------------------------

_NEW_TABLE = "Write the rows to a new table instead"
_RESET = "RESET the option first, if you do not need it"


def _reasons(schema: TableSchema, options: TableOptions, upsert_mode: str) -> Iterator[str]:
    if not schema.primary_keys:
        yield f"it has no primary key. {_NEW_TABLE}"
    if len(options.sequence_field) > 1:
        yield (
            f"'{keys.SEQUENCE_FIELD}' = '{','.join(options.sequence_field)}' means different "
            "things: a table that merges on read compares one column after the other, a table "
            f"with a key index compares the column of each row's producer. {_NEW_TABLE}"
        )
    if options.raw.get(keys.RECORD_LEVEL_EXPIRE_TIME) is not None:
        yield (
            f"'{keys.RECORD_LEVEL_EXPIRE_TIME}' = '{options.raw[keys.RECORD_LEVEL_EXPIRE_TIME]}' "
            f"removes rows in one kind of table and only hides them in the other. {_RESET}"
        )
    yield from (_of_indexed if upsert_mode == NO_UPSERTS else _of_merged)(schema, options)


def _of_merged(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    engine = engine_class(options)
    if not engine.picks_a_version or engine.keeps_rows:
        yield (
            f"'{keys.MERGE_ENGINE}' = '{options.merge_engine}' combines several versions into a "
            f"row, but a key index knows only the last one. {_NEW_TABLE}"
        )
    if options.bucket < 1:
        yield (
            f"'{keys.BUCKET}' = '{options.bucket}' has no fixed number of buckets, which a key "
            f"index requires. {_NEW_TABLE}"
        )
    if options.changelog_producer != "none":
        yield (
            f"'{keys.CHANGELOG_PRODUCER}' = '{options.changelog_producer}' stores a changelog, "
            "which a table with a key index does not need: changes(mode='diff') and follow() "
            "return all changes. RESET the option first"
        )


def _of_indexed(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if options.merges_rows:
        yield (
            f"with '{keys.UPSERT_MODE}' = '{options.upsert_mode}', a stored row combines several "
            f"rows, and late rows cannot be merged with it. {_NEW_TABLE}"
        )
    for key in (keys.UPSERT_METADATA_TTL, keys.UPSERT_DELETED_KEYS_TTL):
        if key in options.raw:
            yield (
                f"'{key}' = '{options.raw[key]}' detects rows that are too old, which requires a "
                f"key index. {_RESET if key == keys.UPSERT_METADATA_TTL else _NEW_TABLE}"
            )
    if options.upsert_hash_function == "uuid":
        yield (
            f"'{keys.UPSERT_HASH_FUNCTION}' = 'uuid' treats different spellings of a UUID as the "
            f"same key, but merging compares strings exactly. {_NEW_TABLE}"
        )
    if options.out_of_order_column is not None:
        yield (
            f"'{keys.UPSERT_OUT_OF_ORDER_COLUMN}' = '{options.out_of_order_column}' requires a "
            f"key index. {_NEW_TABLE}"
        )
    if options.counts_row_errors:
        yield (
            f"'{keys.UPSERT_ROW_ERRORS}' = '{options.row_errors}' skips invalid rows, but a "
            f"table that merges on read refuses them. {_RESET}"
        )
    name = options.delete_record_column
    if name is None:
        return
    if not options.sequence_field or schema.field(name).type.root != "BOOLEAN":
        yield (
            f"'{keys.UPSERT_DELETE_RECORD_COLUMN}' = '{name}' can become '{keys.TOMBSTONE_KEY}' "
            f"only if the column is BOOLEAN and '{keys.SEQUENCE_FIELD}' is set. {_NEW_TABLE}"
        )


_IMPLIED = (
    keys.UPSERT_MODE, keys.UPSERT_KEY, keys.BUCKET_KEY, keys.DELETION_VECTORS_ENABLED,
)  # fmt: skip
"""Options that follow from a key index."""

_OF_VERSIONS = (
    keys.TOMBSTONE_RETENTION, keys.VERSION_RETENTION, keys.FORCE_LOOKUP,
    keys.DELETION_VECTORS_MERGE_ON_READ,
)  # fmt: skip
"""Options for how long versions are kept, or how they are compacted.

An index keeps what is needed.
"""

_OF_INDEXES = (
    keys.UPSERT_HASH_FUNCTION, keys.UPSERT_DELETE_RECORD_COLUMN, keys.UPSERT_ROW_ERRORS,
    keys.UPSERT_DROP_OUT_OF_ORDER, keys.UPSERT_LATE_ROWS,
    keys.UPSERT_OUT_OF_ORDER_COLUMN, keys.UPSERT_METADATA_TTL, keys.UPSERT_DELETED_KEYS_TTL,
    keys.UPSERT_COMPACTION_PERCENT, keys.UPSERT_COMPACTION_COUNT, keys.UPSERT_COMPACTION_BUFFER,
    keys.DELETION_VECTORS_BITMAP64,
)  # fmt: skip
"""Options of an index, and of the rows that it distinguishes."""
