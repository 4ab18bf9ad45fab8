"""Keys of options as constants, for code and messages that mention an option.

Each is the key of a row of the table, which is looked up when this module is imported. A key with
a `<place>` means all columns. `key_of` returns the key for some columns.

Options also have other spellings, and there are hints for unknown names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from keytide.errors import InvalidError
from keytide.options.option_table import SECTIONS
from keytide.options.values import Option

# -- spellings and hints ---------------------------------------------------------------------------


_ROWS = tuple(option for options in SECTIONS.values() for option in options)
_WITH_PLACES = tuple(option for option in _ROWS if option.has_place)
_BY_KEY = {
    key: option for option in _ROWS if not option.has_place for key in (option.key, *option.aliases)
}


def option_of(key: str) -> Option | None:
    """The row of a key in its stored spelling. None for an unknown key."""
    found = _BY_KEY.get(key)
    if found is not None:
        return found
    return next((option for option in _WITH_PLACES if option.pattern.fullmatch(key)), None)


def stored_name(key: str) -> str:
    """The format's own spelling of an option's name.

    Names are case-insensitive, and `_` or `-` can replace `-` or `.`. Column names in a key
    do not change. Raises `InvalidError` with similar names for an unknown option.
    """
    if key in _BY_KEY:
        return _BY_KEY[key].key
    found = _BY_SPELLING.get(_plain(key))
    if found is not None:
        # Dots stand only where the name has some: a dot is not taken for a hyphen.
        pairs = zip(found, key.strip(), strict=True)
        if all(own == "." for own, given in pairs if given == "."):
            return _BY_KEY[found].key
    for option in _WITH_PLACES:
        match = option.pattern.fullmatch(key)
        if match is not None:
            return option.stored_key(match)
    near = difflib.get_close_matches(_plain(key), _BY_SPELLING, n=3, cutoff=0.6)
    known = " or ".join(dict.fromkeys(repr(_BY_SPELLING[name]) for name in near))
    hint = f"did you mean {known}? " if known else ""
    raise InvalidError(
        f"unknown option {key!r}; {hint}Names of your own properties start with 'user.'"
    )


def stored_names(given: Mapping[str, str]) -> dict[str, str]:
    """Options as a user gives them, under their stored names.

    Raises `InvalidError` for an unknown option, a value that does not parse, and two spellings of
    one option with different values.
    """
    stored: dict[str, str] = {}
    for key, value in given.items():
        name = stored_name(key)
        option = option_of(name)
        assert option is not None
        option.parse(key, value)
        if stored.setdefault(name, value) != value:
            raise InvalidError(
                f"option {name!r} is given twice: as {stored[name]!r} and, spelled {key!r}, as "
                f"{value!r}; give it once"
            )
    return stored


def _plain(key: str) -> str:
    return re.sub(r"[._-]", "-", key.strip().lower())


_BY_SPELLING = {_plain(key): key for key in _BY_KEY}


# -- constants -------------------------------------------------------------------------------------


def _key(key: str) -> str:
    option = option_of(key)
    assert option is not None, f"{key!r} is not an option"
    assert option.key == key, f"{key!r} is spelled {option.key!r} in the table of options"
    return key


_PLACE = re.compile(r"<\w+>")


def key_of(key: str, *columns: str) -> str:
    """The option of some columns, such as `fields.a.ignore-retract` of `IGNORE_RETRACT`."""
    return _PLACE.sub(lambda _: ",".join(columns), key)


def columns_in(key: str, given: str) -> str | None:
    """The columns that a given option names, as they stand; None if it is another one than `key`.

    >>> columns_in(SEQUENCE_GROUP, "fields.a,b.sequence-group")
    'a,b'
    """
    before, after = _PLACE.split(key)
    columns = given.removeprefix(before).removesuffix(after)
    return columns if columns and given == f"{before}{columns}{after}" else None


def word_of(key: str) -> str:
    """What follows the columns in a key of columns: `distinct` of `fields.<column>.distinct`."""
    return _PLACE.split(key)[1].removeprefix(".")


# -- keys and layout -------------------------------------------------------------------------------

PRIMARY_KEY = _key("primary-key")
PARTITION = _key("partition")
BUCKET = _key("bucket")
BUCKET_KEY = _key("bucket-key")
BUCKET_FUNCTION_TYPE = _key("bucket-function.type")
POSTPONE_DEFAULT_BUCKET_NUM = _key("postpone.default-bucket-num")
DYNAMIC_PARTITION_OVERWRITE = _key("dynamic-partition-overwrite")
INDEX_FILE_IN_DATA_FILE_DIR = _key("index-file-in-data-file-dir")
DYNAMIC_BUCKET = tuple(
    _key(f"dynamic-bucket.{what}")
    for what in ("target-row-num", "initial-buckets", "max-buckets", "assigner-parallelism")
)
"""The options that apply only to dynamic buckets."""
PRIMARY_KEY_NULLABLE = _key("primary-key.nullable")
ROW_TRACKING_ENABLED = _key("row-tracking.enabled")
DATA_EVOLUTION_ENABLED = _key("data-evolution.enabled")

# -- order and merging -----------------------------------------------------------------------------

MERGE_ENGINE = _key("merge-engine")
SEQUENCE_FIELD = _key("sequence.field")
SEQUENCE_FIELD_SORT_ORDER = _key("sequence.field.sort-order")
SEQUENCE_AUTO_PADDING = _key("sequence.auto-padding")
SEQUENCE_SNAPSHOT_ORDERING = _key("sequence.snapshot-ordering")
WATERMARK_KEY = _key("watermark.key")
TOMBSTONE_KEY = _key("tombstone.key")
TOMBSTONE_STRING_KEY_VALUE = _key("tombstone.string-key-value")
UPSERT_DML_WATERMARK = _key("upsert.dml-watermark")
UPSERT_MODE = _key("upsert.mode")
UPSERT_KEY = _key("upsert.primary-key")
UPSERT_HASH_FUNCTION = _key("upsert.hash-function")
UPSERT_DELETE_RECORD_COLUMN = _key("upsert.delete-record-column")
UPSERT_ROW_ERRORS = _key("upsert.row-errors")
UPSERT_DROP_OUT_OF_ORDER = _key("upsert.drop-out-of-order-record")
UPSERT_OUT_OF_ORDER_COLUMN = _key("upsert.out-of-order-record-column")
UPSERT_LATE_ROWS = _key("upsert.late-rows")
UPSERT_METADATA_TTL = _key("upsert.metadata-ttl")
UPSERT_DELETED_KEYS_TTL = _key("upsert.deleted-keys-ttl")
UPSERT_COMPACTION_PERCENT = _key("upsert.compaction.invalid-records-threshold-percent")
UPSERT_COMPACTION_COUNT = _key("upsert.compaction.invalid-records-threshold-count")
UPSERT_COMPACTION_BUFFER = _key("upsert.compaction.buffer-time-period")
ROWKIND_FIELD = _key("rowkind.field")
IGNORE_DELETE = _key("ignore-delete")
IGNORE_UPDATE_BEFORE = _key("ignore-update-before")
PARTIAL_UPDATE_REMOVE_RECORD_ON_DELETE = _key("partial-update.remove-record-on-delete")
PARTIAL_UPDATE_REMOVE_RECORD_ON_SEQUENCE_GROUP = _key(
    "partial-update.remove-record-on-sequence-group"
)
AGGREGATION_REMOVE_RECORD_ON_DELETE = _key("aggregation.remove-record-on-delete")

# -- external tables -------------------------------------------------------------------------------

TYPE = _key("type")
EXTERNAL_PATHS = _key("data-file.external-paths")
EXTERNAL_FORMAT = _key("external.format")
EXTERNAL_LOCATION = _key("external.location")
EXTERNAL_SCHEMA_ON_READ = _key("external.schema-on-read")
EXTERNAL_OPTION = _key("external.option.<name>")
UPSERT_ON_TIE = _key("upsert.on-tie")

# -- columns ---------------------------------------------------------------------------------------

AGGREGATE_FUNCTION = _key("fields.<column>.aggregate-function")
POST_MERGE_EXPRESSION = _key("fields.<column>.post-merge-expression")
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
DEFAULT_VALUE = _key("fields.<columns>.default-value")
CONSTRAINT = _key("constraint.<name>")
GENERATED = _key("generated.<column>")
USER = _key("user.<name>")

# -- files and commits -----------------------------------------------------------------------------

FILE_COMPRESSION = _key("file.compression")
FILE_FORMAT = _key("file.format")
FILE_FORMAT_PER_LEVEL = _key("file.format.per.level")
FILE_INDEX_BLOOM_FILTER_COLUMNS = _key("file-index.bloom-filter.columns")
FILE_INDEX_BLOOM_FILTER_FPP = _key("file-index.bloom-filter.<column>.fpp")
FILE_INDEX_BLOOM_FILTER_ITEMS = _key("file-index.bloom-filter.<column>.items")
FILE_INDEX_READ_ENABLED = _key("file-index.read.enabled")
READ_MEMORY = _key("read.memory")
COMMIT_MAX_RETRIES = _key("commit.max-retries")
MANIFEST_MERGE_MIN_COUNT = _key("manifest.merge-min-count")
WRITE_ONLY = _key("write-only")
WRITE_DISTRIBUTION = _key("write.distribution")
WRITE_COUNT_OUT_OF_ORDER = _key("write.count-out-of-order")
RECORD_LEVEL_TIME_FIELD = _key("record-level.time-field")
RECORD_LEVEL_EXPIRE_TIME = _key("record-level.expire-time")

# -- reading ---------------------------------------------------------------------------------------

CONSUMER_ID = _key("consumer-id")
SCAN_MODE = _key("scan.mode")
SCAN_SNAPSHOT_ID = _key("scan.snapshot-id")
SCAN_TAG_NAME = _key("scan.tag-name")
SCAN_TIMESTAMP = _key("scan.timestamp")
SCAN_TIMESTAMP_MILLIS = _key("scan.timestamp-millis")
SCAN_VERSION = _key("scan.version")
SCAN_SKIP_UPSERT = _key("scan.skip-upsert")
SCAN_SKIP_UPSERT_DELETE = _key("scan.skip-upsert-delete")
INCREMENTAL_BETWEEN = _key("incremental-between")
INCREMENTAL_BETWEEN_TIMESTAMP = _key("incremental-between-timestamp")
INCREMENTAL_BETWEEN_SCAN_MODE = _key("incremental-between-scan-mode")

# -- changes and compaction ------------------------------------------------------------------------

CHANGELOG_PRODUCER = _key("changelog-producer")
CHANGELOG_FILE_COMPRESSION = _key("changelog-file.compression")
CHANGELOG_FILE_FORMAT = _key("changelog-file.format")
STREAMING_READ_OVERWRITE = _key("streaming-read-overwrite")
FULL_COMPACTION_DELTA_COMMITS = _key("full-compaction.delta-commits")
NUM_SORTED_RUN_COMPACTION_TRIGGER = _key("num-sorted-run.compaction-trigger")
NUM_SORTED_RUN_STOP_TRIGGER = _key("num-sorted-run.stop-trigger")
NUM_LEVELS = _key("num-levels")
COMPACTION_OPTIMIZATION_INTERVAL = _key("compaction.optimization-interval")
FORCE_LOOKUP = _key("force-lookup")
CONSUMER_EXPIRATION_TIME = _key("consumer.expiration-time")
TOMBSTONE_RETENTION = _key("tombstone.retention")
VERSION_RETENTION = _key("version.retention")
DELETION_VECTORS_ENABLED = _key("deletion-vectors.enabled")
DELETION_VECTORS_BITMAP64 = _key("deletion-vectors.bitmap64")
DELETION_VECTORS_MERGE_ON_READ = _key("deletion-vectors.merge-on-read")
PK_CLUSTERING_OVERRIDE = _key("pk-clustering-override")

# -- history ---------------------------------------------------------------------------------------

BRANCH = _key("branch")
SCAN_FALLBACK_BRANCH = _key("scan.fallback-branch")
SCAN_PRIMARY_BRANCH = _key("scan.primary-branch")
TAG_CREATION_DELAY = _key("tag.creation-delay")
TAG_CREATION_PERIOD_DURATION = _key("tag.creation-period-duration")
TAG_DEFAULT_TIME_RETAINED = _key("tag.default-time-retained")
SNAPSHOT_NUM_RETAINED_MAX = _key("snapshot.num-retained.max")
SNAPSHOT_NUM_RETAINED_MIN = _key("snapshot.num-retained.min")
SNAPSHOT_TIME_RETAINED = _key("snapshot.time-retained")
SNAPSHOT_EXPIRE_LIMIT = _key("snapshot.expire.limit")
CHANGELOG_NUM_RETAINED_MAX = _key("changelog.num-retained.max")
CHANGELOG_NUM_RETAINED_MIN = _key("changelog.num-retained.min")
CHANGELOG_TIME_RETAINED = _key("changelog.time-retained")
PARTITION_EXPIRATION_TIME = _key("partition.expiration-time")
PARTITION_TIMESTAMP_PATTERN = _key("partition.timestamp-pattern")
PARTITION_TIMESTAMP_FORMATTER = _key("partition.timestamp-formatter")
PUBLISH = _key("publish")
PUBLISH_ICEBERG_FORMAT_VERSION = _key("publish.iceberg.format-version")
METADATA_ICEBERG_STORAGE = _key("metadata.iceberg.storage")
