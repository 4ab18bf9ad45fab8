"""Keys of options as constants, for code and messages that speak of an option.

Each is the key of a row of the table, which is looked up when this module is imported. With a
`<place>` in it a key is one for all columns; `key_of` gives that of some.
"""

from __future__ import annotations

import re

from keytide.options.names import option_of

__all__ = ["key_of"]


def _key(key: str) -> str:
    option = option_of(key)
    assert option is not None, f"{key!r} is no option"
    assert option.key == key, f"{key!r} is not how the table of options spells {option.key!r}"
    return key


def key_of(key: str, *columns: str) -> str:
    """The option of some columns, such as `fields.a.ignore-retract` of `IGNORE_RETRACT`."""
    return re.sub(r"<\w+>", lambda _: ",".join(columns), key)


# -- which version wins ----------------------------------------------------------------------------

MERGE_ENGINE = _key("merge-engine")
SEQUENCE_FIELD = _key("sequence.field")
IGNORE_DELETE = _key("ignore-delete")
IGNORE_UPDATE_BEFORE = _key("ignore-update-before")
PARTIAL_UPDATE_REMOVE_RECORD_ON_DELETE = _key("partial-update.remove-record-on-delete")
PARTIAL_UPDATE_REMOVE_RECORD_ON_SEQUENCE_GROUP = _key(
    "partial-update.remove-record-on-sequence-group"
)
AGGREGATION_REMOVE_RECORD_ON_DELETE = _key("aggregation.remove-record-on-delete")

CHANGELOG_PRODUCER = _key("changelog-producer")
DELETION_VECTORS_ENABLED = _key("deletion-vectors.enabled")
PK_CLUSTERING_OVERRIDE = _key("pk-clustering-override")

# -- columns ---------------------------------------------------------------------------------------

AGGREGATE_FUNCTION = _key("fields.<column>.aggregate-function")
DEFAULT_AGGREGATE_FUNCTION = _key("fields.default-aggregate-function")
SEQUENCE_GROUP = _key("fields.<columns>.sequence-group")
IGNORE_RETRACT = _key("fields.<column>.ignore-retract")
COUNT_VALUES = _key("fields.<column>.count-values")
DISTINCT = _key("fields.<column>.distinct")
LIST_AGG_DELIMITER = _key("fields.<column>.list-agg-delimiter")
NESTED_KEY = _key("fields.<column>.nested-key")
NESTED_SEQUENCE_FIELD = _key("fields.<column>.nested-sequence-field")
NESTED_KEY_NULL_STRATEGY = _key("fields.<column>.nested-key-null-strategy")
COUNT_LIMIT = _key("fields.<column>.count-limit")
MERGE_MAP_TS_FIELD = _key("fields.<column>.merge-map-with-keytime.ts-field")
TS_FIELD = _key("fields.<column>.ts-field")
