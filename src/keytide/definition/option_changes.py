"""Changes of options: which ones a table allows, and its conversion to the other kind.

Stored rows have been merged and laid out with the options of their time. So an option that affects
this cannot change while there are rows. An exception is what it says about columns that are added
in the same step: these are NULL in every stored row, so the rows do not change.

A conversion makes a table that merges on read one with a key index, or back. Columns and keys stay.
Options with the same meaning in both kinds stay too, and options that follow from the kind are
added or removed. Options with an equivalent in the other kind are replaced by it. Options that do
not affect rows are dropped. Everything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from keytide.base.dataclass import dataclass, replace
from keytide.definition.checks import complete_options, validate_definition
from keytide.definition.kind import kind_of
from keytide.errors import InvalidError, KeytideError, UnsupportedError
from keytide.format.schema import NO_UPSERTS, TableSchema
from keytide.merge.engines import compacts_by_lookup, engine_class
from keytide.merge.functions.collections import MergeMapWithKeyTime
from keytide.options import Age, Change, Option, TableOptions, keys, option_of
from keytide.types import Field, MapType, RowType

# -- changes of options ----------------------------------------------------------------------------


def with_option(options: Mapping[str, str], key: str, value: str | None) -> dict[str, str]:
    """The options with one set or, with None, removed, under all of its names."""
    option = option_of(key)
    names = {key} if option is None or option.has_place else {option.key, *option.aliases}
    if key == _WATERMARK and options.get(_SEQUENCE) == options.get(_WATERMARK):
        names.add(_SEQUENCE)  # it is derived from the watermark key
    changed = {k: v for k, v in options.items() if k not in names}
    if value is not None:
        changed[key] = value
    return changed


_WATERMARK, _SEQUENCE = keys.WATERMARK_KEY, keys.SEQUENCE_FIELD


def completed_options(schema: TableSchema) -> dict[str, str]:
    """The options with those that follow from them. The layout of the table does not change."""
    stored = complete_options(schema)
    # Tables of other engines may lack them. Missing options then do not mean the defaults of a new
    # table.
    return {k: v for k, v in stored.items() if k in schema.options or k not in _LAYOUT}


_LAYOUT = (keys.BUCKET, keys.FILE_FORMAT)


# -- allowed changes -------------------------------------------------------------------------------


def refuse_changes(before: TableSchema, after: TableSchema, *, has_rows: bool) -> None:
    """Raise `InvalidError` for option changes that would change the meaning of stored rows.

    `has_rows` says whether there are stored files that may depend on them.
    """
    # Refuse changes of names that a key index depends on.
    if before.upsert_mode != after.upsert_mode:
        raise InvalidError(
            f"Change '{keys.UPSERT_MODE}' is not supported by ALTER. It is "
            f"'{before.upsert_mode}', and '{after.upsert_mode}' requires rewriting all files; "
            "call Table.convert or CALL sys.convert instead"
        )
    known = {field.id for field in before.fields}
    old, new = _statements(before, known), _statements(after, known)
    # Report what was requested before what follows from it: a watermark key before a sequence
    # field.
    for place in sorted({*old, *new}, reverse=True):
        statement = new[place] if place in new else old[place]
        found, wanted = (each[place].value if place in each else statement.default
                         for each in (old, new))  # fmt: skip
        change = statement.option.change
        is_refused = has_rows or change is Change.NEVER
        if change is Change.ONE_WAY:
            is_refused = has_rows and not wanted
        elif change is Change.SHORTER:
            is_refused = has_rows and not (isinstance(wanted, Age) and wanted.is_at_most(found))
        if found != wanted and is_refused:
            names = {field.id: field.name for field in (*before.fields, *after.fields)}
            was, becomes = (_value_text(each, names) for each in (found, wanted))
            raise InvalidError(
                f"cannot change '{statement.key}' from {was} to {becomes}: stored rows were merged "
                f"with the old value, and deleted or older rows could come back; {_REWRITE}"
            )
    if has_rows:
        _refuse_other_values(before, after)


def _refuse_other_values(before: TableSchema, after: TableSchema) -> None:
    """Refuse changes after which stored rows would have other values than their definition says."""
    # A generated column whose values would not match its expression.
    had, has = (
        {schema.field(n).id: text for n, text in _generations(schema) if n in schema.by_name}
        for schema in (before, after)
    )
    for name, text in _generations(after):
        if had.get(after.field(name).id) != has[after.field(name).id]:
            raise InvalidError(
                f"column {name!r} cannot become GENERATED ALWAYS AS ({text}), because existing "
                f"rows have other values; {_REWRITE}"
            )

    # The time member of `merge_map_with_keytime`: the last member by default.
    times, new_times = _last_members(before), _last_members(after)
    for name in times.keys() & new_times.keys():
        if times[name].id != new_times[name].id:
            raise InvalidError(
                f"column {name!r} orders its entries by the last field of their ROW, which would "
                f"change from {times[name].name!r} to {new_times[name].name!r}; add new fields "
                "before it"
            )

    # Where an engine picks a version, the same one wins, however often it is stored.
    old, new = TableOptions.parse(before.options), TableOptions.parse(after.options)
    was, is_now = compacts_by_lookup(old), compacts_by_lookup(new)
    if was != is_now and not engine_class(old).picks_a_version:
        contains = "contain" if was else "do not contain"
        raise InvalidError(
            f"{keys.CHANGELOG_PRODUCER!r} cannot change from {old.changelog_producer!r} to "
            f"{new.changelog_producer!r} in a table with rows and engine {old.merge_engine!r}: its "
            f"compacted values {contains} those of higher levels, so values would be counted twice "
            f"or not at all; {_REWRITE}"
        )


def keeps_stored_rows(before: TableSchema, after: TableSchema) -> bool:
    """Whether stored rows are the same under the options of both, whoever changed them."""
    try:
        refuse_changes(before, after, has_rows=True)
    except InvalidError:
        return False
    return True


@dataclass(frozen=True)
class _Statement:
    """What an option says about columns of stored rows, identified by their ids."""

    key: str
    option: Option
    columns: tuple[int | str, ...]
    value: Any

    @property
    def default(self) -> Any:
        return () if self.option.type.lists_columns else self.option.default_value


def _statements(schema: TableSchema, known: set[int]) -> dict[tuple[str, str], _Statement]:
    """The statements that stored rows depend on, by their option and its columns."""
    # By ids, a renamed column is the same column, and one that was dropped and added again is not.
    ids = {field.name: field.id for field in schema.fields}
    found = {}
    for key, text in schema.options.items():
        option = option_of(key)
        if option is None or option.change is Change.FREE:
            continue
        named, listed = (
            tuple(ids.get(name.strip(), name) for name in names)
            for names in option.columns_of(key, text)
        )
        # An option that is only about other columns says nothing.
        columns = tuple(each for each in named if isinstance(each, str) or each in known)
        if option.type.lists_columns:
            value: Any = tuple(each for each in listed if isinstance(each, str) or each in known)
            speaks = bool(columns or value)
        else:
            speaks = bool(columns or not named)
            try:
                value = option.parse(key, text)
            except InvalidError:
                value = text  # a value of another engine
        if speaks:
            found[option.key, str(columns)] = _Statement(key, option, columns, value)
    return {
        place: each
        for place, each in found.items()
        if each.option.used_with is None or (each.option.used_with, "()") in found
    }


_REWRITE = (
    "write the rows to a new table: CREATE TABLE new LIKE old WITH ('option' = 'value'), then "
    "INSERT INTO new SELECT * FROM old; or TRUNCATE the table, change the option, and load it "
    "again"
)


def _generations(schema: TableSchema) -> Iterable[tuple[str, str]]:
    return TableOptions.parse(schema.options).by_columns(keys.GENERATED).items()


def _last_members(schema: TableSchema) -> dict[str, Field]:
    options = TableOptions.parse(schema.options)
    functions = options.by_columns(keys.AGGREGATE_FUNCTION)
    named = {*options.by_columns(keys.TS_FIELD), *options.by_columns(keys.MERGE_MAP_TS_FIELD)}
    return {
        field.name: field.type.value.fields[-1]
        for field in schema.fields
        if functions.get(field.name) == MergeMapWithKeyTime.name
        and field.name not in named
        and isinstance(field.type, MapType)
        and isinstance(field.type.value, RowType)
    }


def _value_text(value: Any, names: Mapping[int, str]) -> str:
    """The value, with names of columns instead of their ids."""
    if isinstance(value, tuple):
        value = ", ".join(str(names.get(each, each)) for each in value) or None
    if value is None:
        return "nothing"
    if isinstance(value, Age):
        return repr(str(value))
    return str(value).lower() if isinstance(value, bool) else repr(value)


def refuse_bucket_change(before: TableSchema, after: TableSchema) -> None:
    """Raise `InvalidError` for a change to or from a bucket mode without a fixed number."""
    old, new = TableOptions.parse(before.options).bucket, TableOptions.parse(after.options).bucket
    if keys.BUCKET in before.options and keys.BUCKET not in after.options:
        raise InvalidError(
            f"Cannot reset bucket. It is {old}, and without the option buckets would be dynamic; "
            "set another fixed number"
        )
    if old != new and min(old, new) < 1:
        which = f"when it is {old}" if old < 1 else f"to {new}"
        raise InvalidError(f"Cannot change bucket {which}; write the rows to a new table")


def orders_versions(schema: TableSchema, name: str) -> bool:
    """Whether a column determines which version is newer, for rows or for a group."""
    options = TableOptions.parse(schema.options)
    groups = options.by_columns(keys.SEQUENCE_GROUP)
    named = (each.strip() for names in groups for each in names.split(","))
    return name in {*options.sequence_field, *named}


# -- columns in options ----------------------------------------------------------------------------


def refuse_dropping_named(options: Mapping[str, str], name: str) -> None:
    """Raise `InvalidError` if options name the column `name`. The error lists them."""
    naming = [key for key, value in options.items() if name in set(_columns_of(key, value))]
    if naming:
        raise InvalidError(
            f"column {name!r} cannot be dropped, because {', '.join(map(repr, naming))} uses it; "
            "change or remove the option first, if possible"
        )


def refuse_losing_read(
    before: TableSchema, after: TableSchema, read: Mapping[str, Collection[str]]
) -> None:
    """Raise `InvalidError` if a column that an expression reads is dropped or renamed.

    `read` are the columns that expressions of the definition before read, by their options.
    """
    ids = {field.name: field.id for field in after.fields}
    lost = {field.name for field in before.fields if ids.get(field.name) != field.id}
    for key, columns in read.items():
        gone = sorted(lost.intersection(columns))
        if gone and after.options.get(key) == before.options[key]:
            raise InvalidError(
                f"column {gone[0]!r} cannot be dropped or renamed, because '{key}' = "
                f"{before.options[key]!r} uses it; remove the option first"
            )


def renamed_options(options: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """The options after renaming the column `old`, in keys and in values."""
    renamed = {}
    for key, value in options.items():
        if old in set(_columns_of(key, value)):
            if "," in new or new != new.strip():
                raise InvalidError(
                    f"column {old!r} cannot be renamed to {new!r}, because {key!r} is a "
                    "comma-separated list; choose a name without commas and without leading or "
                    "trailing blanks"
                )
            match, option = _columns_in_key(key), option_of(key)
            if match is not None:
                start, end = match.span("columns")
                key = f"{key[:start]}{_renamed_list(match['columns'], old, new)}{key[end:]}"
            if option is not None and option.type.lists_columns:
                value = _renamed_list(value, old, new)
        renamed[key] = value
    return renamed


def _columns_of(key: str, value: str) -> Iterator[str]:
    """The columns that an option names."""
    match, option = _columns_in_key(key), option_of(key)
    if match is not None:
        yield from (name.strip() for name in match["columns"].split(","))
    if option is not None and option.type.lists_columns:
        yield from (name.strip() for name in value.split(","))


def _columns_in_key(key: str) -> re.Match[str] | None:
    option = option_of(key)
    pattern = _OF_OTHERS if option is None else option.pattern
    match = pattern.fullmatch(key)
    return match if match is not None and "columns" in match.groupdict() else None


_OF_OTHERS = re.compile(r"fields\.(?P<columns>.+?)\.[^.]+")
"""Column options that only other engines know."""


def _renamed_list(text: str, old: str, new: str) -> str:
    return ",".join(new if name.strip() == old else name for name in text.split(","))


# -- conversion of the definition ------------------------------------------------------------------


@dataclass(frozen=True)
class ConvertedDefinition:
    """A definition in the other kind, and the options that it lost."""

    schema: TableSchema
    dropped_options: tuple[str, ...]

    @classmethod
    def of(cls, before: TableSchema, after: TableSchema) -> ConvertedDefinition:
        """What `after` lost, if it was converted from `before`."""
        gone = {*before.options} - {*after.options} - {*_IMPLIED}
        if keys.TOMBSTONE_KEY in after.options:
            gone.discard(keys.UPSERT_DELETE_RECORD_COLUMN)
        return cls(after, tuple(sorted(gone)))


def converted(schema: TableSchema, upsert_mode: str) -> ConvertedDefinition:
    """A definition with a key index ('full'), or that of a table that merges ('none').

    REQUIRES: it is of the other kind. Raises `UnsupportedError` for a definition without an
    equivalent, with the reason and what to do.
    """
    for reason in _reasons(schema, TableOptions.parse(schema.options), upsert_mode):
        raise UnsupportedError(f"'{keys.UPSERT_MODE}' = '{upsert_mode}' is not possible: {reason}")
    try:
        made = _definition_of_kind(schema, upsert_mode)
        validate_definition(made, TableOptions.parse(made.options))
    except KeytideError as error:
        raise UnsupportedError(
            f"'{keys.UPSERT_MODE}' = '{upsert_mode}' is not possible: {error}. {_NEW_TABLE}"
        ) from error
    return ConvertedDefinition.of(schema, made)


def as_kind_of(schema: TableSchema, other: TableSchema) -> TableSchema:
    """A definition in the kind of another one, to show stored rows of that kind."""
    return (
        schema
        if kind_of(schema) is kind_of(other)
        else _definition_of_kind(schema, other.upsert_mode)
    )


def _definition_of_kind(schema: TableSchema, upsert_mode: str) -> TableSchema:
    if upsert_mode == NO_UPSERTS:
        parsed, gone = TableOptions.parse(schema.options), {*_OF_INDEXES, *_IMPLIED}
        rest = [name for name in schema.primary_keys if name not in schema.partition_keys]
        if list(parsed.bucket_key) != rest:
            gone.remove(keys.BUCKET_KEY)
        options = {key: value for key, value in schema.options.items() if key not in gone}
        if parsed.delete_record_column is not None and parsed.sequence_field:
            options[keys.WATERMARK_KEY] = ",".join(parsed.sequence_field)
            options[keys.TOMBSTONE_KEY] = parsed.delete_record_column
    else:
        gone = {*_OF_VERSIONS, keys.DELETION_VECTORS_ENABLED, keys.UPSERT_MODE}
        options = {key: value for key, value in schema.options.items() if key not in gone}
        options[keys.UPSERT_MODE] = "full"
    named = replace(schema, options=options)
    return replace(named, options=complete_options(named))


# -- obstacles to a conversion ---------------------------------------------------------------------

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
    if upsert_mode == NO_UPSERTS:
        yield from _of_indexed(schema, options)
        return
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
