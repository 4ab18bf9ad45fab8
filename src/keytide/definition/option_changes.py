"""Which changes of options a table allows, and which columns its options name.

Stored rows have been merged and laid out with the options of their time. So an option that affects
this cannot change while there are rows. An exception is what it says about columns that are added
in the same step: these are NULL in every stored row, so the rows do not change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keytide.definition.checks import complete_options
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.merge.engines import compacts_by_lookup, engine_class
from keytide.merge.functions.sets import MergeMapWithKeyTime
from keytide.options import Age, Change, Option, TableOptions, keys, option_of
from keytide.types import Field, MapType, RowType

__all__ = [
    "completed_options",
    "keeps_stored_rows",
    "orders_versions",
    "refuse_bucket_change",
    "refuse_changes",
    "refuse_dropping_named",
    "refuse_losing_read",
    "renamed_options",
    "with_option",
]


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
    _refuse_other_kind(before, after)
    known = {field.id for field in before.fields}
    old, new = _statements(before, known), _statements(after, known)
    # Report what was requested before what follows from it: a watermark key before a sequence
    # field.
    for place in sorted({*old, *new}, reverse=True):
        statement = new[place] if place in new else old[place]
        found, wanted = (each[place].value if place in each else statement.default
                         for each in (old, new))  # fmt: skip
        if found != wanted and _is_refused(statement.option, found, wanted, has_rows):
            names = {field.id: field.name for field in (*before.fields, *after.fields)}
            raise _refused(statement.key, _named(found, names), _named(wanted, names))
    if has_rows:
        _refuse_generating(before, after)
        _refuse_other_time(before, after)
        _refuse_lookup(TableOptions.parse(before.options), TableOptions.parse(after.options))


def _refuse_other_kind(before: TableSchema, after: TableSchema) -> None:
    """Refuse changes of names that a key index depends on."""
    if before.upsert_mode != after.upsert_mode:
        raise InvalidError(
            f"Change '{keys.UPSERT_MODE}' is not supported by ALTER. It is "
            f"'{before.upsert_mode}', and '{after.upsert_mode}' requires rewriting all files; "
            "call Table.convert or CALL sys.convert instead"
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
        if option is not None and option.change is not Change.FREE:
            statement = _statement(option, key, text, ids, known)
            if statement is not None:
                found[option.key, str(statement.columns)] = statement
    return {
        place: each
        for place, each in found.items()
        if each.option.used_with is None or (each.option.used_with, "()") in found
    }


def _statement(
    option: Option, key: str, text: str, ids: Mapping[str, int], known: set[int]
) -> _Statement | None:
    """What one option says about known columns. None if it is only about other columns."""
    named, listed = (
        tuple(ids.get(name.strip(), name) for name in names)
        for names in option.columns_of(key, text)
    )
    columns = tuple(each for each in named if isinstance(each, str) or each in known)
    if not option.type.lists_columns:
        speaks = not named or columns
        return _Statement(key, option, columns, _typed(option, key, text)) if speaks else None
    value = tuple(each for each in listed if isinstance(each, str) or each in known)
    return _Statement(key, option, columns, value) if columns or value else None


def _typed(option: Option, key: str, text: str) -> Any:
    try:
        return option.parse(key, text)
    except InvalidError:
        return text  # a value of another engine


def _is_refused(option: Option, found: Any, wanted: Any, has_rows: bool) -> bool:
    if option.change is Change.ONE_WAY:
        return has_rows and not wanted
    if option.change is Change.SHORTER:
        return has_rows and not (isinstance(wanted, Age) and wanted.is_at_most(found))
    return has_rows or option.change is Change.NEVER


def _refused(key: str, found: Any, wanted: Any) -> InvalidError:
    was, becomes = (_shown(value) for value in (found, wanted))
    return InvalidError(
        f"cannot change '{key}' from {was} to {becomes}: "
        "stored rows were merged with the old value, and deleted or older rows could come back; "
        f"{_REWRITE}"
    )


_REWRITE = (
    "write the rows to a new table: CREATE TABLE new LIKE old WITH ('option' = 'value'), then "
    "INSERT INTO new SELECT * FROM old; or TRUNCATE the table, change the option, and load it "
    "again"
)


def _refuse_generating(before: TableSchema, after: TableSchema) -> None:
    """Raise `InvalidError` for a generated column whose values would not match its expression."""
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


def _generations(schema: TableSchema) -> Iterable[tuple[str, str]]:
    return TableOptions.parse(schema.options).by_columns(keys.GENERATED).items()


def _refuse_other_time(before: TableSchema, after: TableSchema) -> None:
    """Refuse changes of the time member of `merge_map_with_keytime`: the last member by default."""
    times, new_times = _last_members(before), _last_members(after)
    for name in times.keys() & new_times.keys():
        if times[name].id != new_times[name].id:
            raise InvalidError(
                f"column {name!r} orders its entries by the last field of their ROW, which would "
                f"change from {times[name].name!r} to {new_times[name].name!r}; add new fields "
                "before it"
            )


def _last_members(schema: TableSchema) -> dict[str, Field]:
    options = TableOptions.parse(schema.options)
    functions = options.by_columns(keys.AGGREGATE_FUNCTION)
    named = {
        *options.by_columns(keys.TS_FIELD),
        *options.by_columns(keys.MERGE_MAP_TS_FIELD),
    }
    return {
        field.name: field.type.value.fields[-1]
        for field in schema.fields
        if functions.get(field.name) == MergeMapWithKeyTime.name
        and field.name not in named
        and isinstance(field.type, MapType)
        and isinstance(field.type.value, RowType)
    }


def _refuse_lookup(before: TableOptions, after: TableOptions) -> None:
    if engine_class(before).picks_a_version:
        return  # the same version wins, however often it is stored
    was, is_now = compacts_by_lookup(before), compacts_by_lookup(after)
    if was != is_now:
        key, contains = keys.CHANGELOG_PRODUCER, "contain"
        contains = contains if was else f"do not {contains}"
        raise InvalidError(
            f"{key!r} cannot change from {before.changelog_producer!r} to "
            f"{after.changelog_producer!r} in a table with rows and engine "
            f"{before.merge_engine!r}: its compacted values {contains} those of higher levels, "
            f"so values would be counted twice or not at all; {_REWRITE}"
        )


def _named(value: Any, names: Mapping[int, str]) -> Any:
    """The value with names of columns instead of their ids."""
    if not isinstance(value, tuple):
        return value
    return ", ".join(str(names.get(each, each)) for each in value) or None


def _shown(value: Any) -> str:
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
            key, value = _renamed_option(key, value, old, new)
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


def _renamed_option(key: str, value: str, old: str, new: str) -> tuple[str, str]:
    match, option = _columns_in_key(key), option_of(key)
    if match is not None:
        start, end = match.span("columns")
        key = f"{key[:start]}{_renamed_list(match['columns'], old, new)}{key[end:]}"
    is_listed = option is not None and option.type.lists_columns
    return key, _renamed_list(value, old, new) if is_listed else value


def _renamed_list(text: str, old: str, new: str) -> str:
    return ",".join(new if name.strip() == old else name for name in text.split(","))
