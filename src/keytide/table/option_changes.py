"""Which table options may change, and which columns they name.

An option is text. Most may change at any time; those that say how stored files are laid out and
merged may not, once there are files (Paimon format, options that cannot change).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace

from keytide.errors import InvalidError
from keytide.options import TableOptions
from keytide.table.definition import complete_options

__all__ = ["completed_options", "refuse_dropping_named", "renamed_options", "with_option"]

_KEY_OPTIONS = frozenset(("primary-key", "partition"))

_FIXED_OPTIONS = _KEY_OPTIONS | {
    "aggregation.remove-record-on-delete", "bucket-function.type", "bucket-key",
    "data-evolution.enabled", "data-file.path-directory", "dynamic-bucket.initial-buckets",
    "force-lookup", "index-file-in-data-file-dir", "merge-engine",
    "partial-update.remove-record-on-delete", "partial-update.remove-record-on-sequence-group",
    "partition.default-name", "partition.legacy-name", "pk-clustering-override",
    "primary-key.nullable", "row-tracking.enabled", "rowkind.field",
    "sequence.snapshot-ordering", "type",
}  # fmt: skip
"""Stored files depend on these."""

_SET_ONCE = frozenset(("watermark.key", "tombstone.key", "tombstone.string-key-value"))
"""May be given to a table with rows, but not changed (watermark rule R26)."""

_ONE_WAY = {"ignore_delete": "ignore-delete", "ignore_update_before": "ignore-update-before"}

_COLUMN_LISTS = frozenset(
    (
        "bucket-key", "changelog-producer.row-deduplicate-ignore-fields", "clustering.columns",
        "partial-update.remove-record-on-sequence-group", "record-level.time-field",
        "rowkind.field", "sequence.field", "tombstone.key", "watermark.key",
    )
)  # fmt: skip
_COLUMN_LIST_ENDS = (".sequence-group", ".columns")
_COLUMN_KEY = re.compile(
    r"(?P<head>fields|file-index\.[^.]+)\.(?P<names>.+?)"
    r"\.(?P<what>merge-map-with-keytime\.ts-field|[^.]+)"
)


def with_option(
    options: Mapping[str, str], key: str, value: str | None, *, has_rows: bool
) -> dict[str, str]:
    """The options with one set, or with None removed.

    `has_rows` says whether files are stored that may depend on it. Raises `InvalidError` for a
    change that is refused and for a value that does not parse.
    """
    changed = {k: v for k, v in options.items() if k != key}
    if value is not None:
        changed[key] = value
    before, after = TableOptions.parse(options), TableOptions.parse(changed)
    if options.get(key) != value and (has_rows or key in _KEY_OPTIONS):
        same_meaning = key in _TYPED_KEYS and replace(before, raw={}) == replace(after, raw={})
        if not same_meaning:
            _refuse_fixed(options, key)
        _refuse_bucket(before, after, key, value)
        _refuse_one_way(before, after)
        _refuse_vectors(before, after)
        _refuse_lookup(before, after, key)
    return changed


_TYPED_KEYS = frozenset(
    key for spec in fields(TableOptions) for key in spec.metadata.get("keys", ())
)


def _refuse_fixed(options: Mapping[str, str], key: str) -> None:
    if key in _FIXED_OPTIONS or (key in _SET_ONCE and key in options):
        found = f"it is {options[key]!r}" if key in options else "it is not set"
        raise InvalidError(
            f"Change '{key}' is not supported yet. Stored rows depend on the option, and {found}; "
            f"write the rows into a new table that has it otherwise"
        )


def _refuse_bucket(before: TableOptions, after: TableOptions, key: str, value: str | None) -> None:
    if key != "bucket":
        return
    way_out = "write the rows into a new table"
    if value is None:
        raise InvalidError(
            f"Cannot reset bucket. It is {before.bucket}, and without the option buckets would be "
            f"dynamic; set another fixed number"
        )
    if before.bucket != after.bucket and before.bucket < 1:
        raise InvalidError(f"Cannot change bucket when it is {before.bucket}; {way_out}")
    if before.bucket != after.bucket and after.bucket < 1:
        raise InvalidError(f"Cannot change bucket to {after.bucket}; {way_out}")


def _refuse_one_way(before: TableOptions, after: TableOptions) -> None:
    for name, key in _ONE_WAY.items():
        if getattr(before, name) and not getattr(after, name):
            raise InvalidError(
                f"Cannot change {key} from true to false. What was ignored is lost, and rows would "
                f"tell of it only in part; write the rows into a new table"
            )


def _refuse_vectors(before: TableOptions, after: TableOptions) -> None:
    if before.deletion_vectors_enabled == after.deletion_vectors_enabled:
        return
    if after.raw.get("deletion-vectors.modifiable", "false").lower() != "true":
        raise InvalidError(
            "Cannot change deletion vectors mode: 'deletion-vectors.enabled' decides which stored "
            "files are read; set 'deletion-vectors.modifiable' to 'true' first"
        )


def _refuse_lookup(before: TableOptions, after: TableOptions, key: str) -> None:
    if before.merge_engine not in ("aggregation", "partial-update"):
        return  # the version that wins is the same, however often it is stored
    if before.compacts_by_lookup != after.compacts_by_lookup:
        contains = "contain" if before.compacts_by_lookup else "do not contain"
        raise InvalidError(
            f"{key!r} cannot change from {before.raw.get(key)!r} to {after.raw.get(key)!r} in a "
            f"table of engine {before.merge_engine!r} with rows: its compacted values {contains} "
            f"those on the levels above, and would be counted otherwise from now on; write the "
            f"rows into a new table"
        )


def completed_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options with those that they imply; the layout of the table stays as it was made."""
    stored = complete_options(options)
    return {k: v for k, v in stored.items() if k in options or k not in _LAYOUT}


_LAYOUT = ("bucket", "file.format")


def refuse_dropping_named(options: Mapping[str, str], name: str) -> None:
    """Raise `InvalidError` naming the options that name the column `name`, if there are any."""
    keys = [key for key, value in options.items() if name in _columns_of(key, value)]
    if keys:
        raise InvalidError(
            f"column {name!r} cannot be dropped: {', '.join(map(repr, keys))} name it; change or "
            f"remove the option first, where that is allowed"
        )


def renamed_options(options: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """The options with every column named `old` renamed, in keys and in values."""
    renamed = {}
    for key, value in options.items():
        if old in _columns_of(key, value):
            if "," in new or new != new.strip():
                raise InvalidError(
                    f"column {old!r} cannot be renamed to {new!r}: {key!r} lists columns with "
                    f"commas; choose a name without commas and outer blanks"
                )
            key, value = _renamed_option(key, value, old, new)
        renamed[key] = value
    return renamed


def _columns_of(key: str, value: str) -> set[str]:
    """The columns that an option names."""
    match = _COLUMN_KEY.fullmatch(key)
    names = match["names"].split(",") if match else []
    names += value.split(",") if _lists_columns(key) else []
    return {name.strip() for name in names}


def _renamed_option(key: str, value: str, old: str, new: str) -> tuple[str, str]:
    match = _COLUMN_KEY.fullmatch(key)
    if match:
        key = f"{match['head']}.{_renamed_list(match['names'], old, new)}.{match['what']}"
    return key, _renamed_list(value, old, new) if _lists_columns(key) else value


def _renamed_list(text: str, old: str, new: str) -> str:
    return ",".join(new if name.strip() == old else name for name in text.split(","))


def _lists_columns(key: str) -> bool:
    return key in _COLUMN_LISTS or key.endswith(_COLUMN_LIST_ENDS)
