"""The table of table options: every key that Keytide knows, one row each.

The keys are those of Apache Paimon, and a few of Keytide's own. A row has everything about an
option: its type, its default, its meaning, when it can change, and what Keytide does with it.
Options that only other engines use are listed too, because they use the same tables.
"""

from __future__ import annotations

from keytide.options.values import (
    AGE,
    BOOLEAN,
    BUCKETS,
    BUCKETS_MAX,
    COLUMN,
    COLUMNS,
    DURATION,
    DURATION_OR_FOREVER,
    ENGINE,
    EXACT_COLUMNS,
    FILE_NAME,
    FOLDER,
    FORMS,
    ICEBERG_VERSION,
    LEVELS,
    NAMES,
    PADDINGS,
    SHARE,
    SIZE,
    STATS_MODE,
    TEXT,
    Change,
    ForOthers,
    Option,
    Refused,
    ValueType,
    choice,
    integer,
    size,
)

# -- the table -------------------------------------------------------------------------------------


FREE, FIXED, ONE_WAY, NEVER = Change.FREE, Change.FIXED, Change.ONE_WAY, Change.NEVER

_NESTED = ("nested_update", "nested_partial_update")


def _kept(key: str, type_: ValueType, default: str | None, meaning: str, here: str) -> Option:
    return Option(key, type_, meaning, default, use=ForOthers(here))


def _refused(
    key: str, type_: ValueType, default: str | None, meaning: str, *refused: str
) -> Option:
    return Option(key, type_, meaning, default, use=Refused(*refused))


_DEFINE = "use Lake.create_external_table or CREATE EXTERNAL TABLE"

# -- keys and layout -------------------------------------------------------------------------------

_LAYOUT = (
    Option("primary-key", NAMES, "The primary key, for SQL dialects that have no PRIMARY KEY "
           "clause. It is stored as the table's key, not as an option.", change=NEVER),
    Option("partition", NAMES, "The partition columns, for SQL dialects that have no PARTITIONED "
           "BY clause. They are stored as the table's partition keys, not as an option.",
           change=NEVER),
    Option("bucket", BUCKETS, "Number of buckets per partition. The default is 1 for tables with "
           "a primary key and -1 (no buckets) for tables without one. More buckets allow more "
           "parallel merging, but create more and smaller files; aim for 200 MB to 1 GB of data "
           "per bucket. A change applies to later writes into new or overwritten partitions. "
           "With a primary key, -1 means dynamic buckets: as many as needed for "
           "`dynamic-bucket.target-row-num` keys in each, assigned by an index. -2 means that "
           "each partition has its own number of buckets; see `postpone.default-bucket-num`."),
    Option("bucket-key", EXACT_COLUMNS, "Columns whose hash selects the bucket. With a primary "
           "key, they must be key columns. Default: all key columns.", change=FIXED),
    Option("bucket-function.type", choice("default", "mod", "hive"),
           "Function that computes the bucket from the bucket key.", "default", FIXED),
    Option("postpone.default-bucket-num", integer(1), "Number of buckets of a new partition when "
           "`bucket` is -2.", "1"),
    _refused("postpone.batch-write-fixed-bucket", BOOLEAN, "true", "Whether writes assign rows "
             "to buckets immediately when `bucket` is -2.",
             "rows would be invisible until a compaction", "do not set it"),
    Option("dynamic-bucket.target-row-num", integer(1, 2**63 - 1), "Number of keys, including "
           "deleted keys, that fill a bucket when `bucket` is -1. Further keys go to another "
           "bucket.",
           "2000000"),
    Option("dynamic-bucket.initial-buckets", integer(1, 1 << 15), "Number of buckets that a new "
           "partition starts with when `bucket` is -1. Default: one per writing task.",
           change=FIXED),
    Option("dynamic-bucket.max-buckets", BUCKETS_MAX, "Maximum number of buckets per partition "
           "when `bucket` is -1. When all are full, further keys are spread over them. -1 means "
           "no limit.", "-1"),
    Option("dynamic-bucket.assigner-parallelism", integer(1), "Number of Spark tasks that assign "
           "the new keys of a partition to buckets when `bucket` is -1 and "
           "`dynamic-bucket.initial-buckets` is not set. Each task fills its own buckets. "
           "Default: one for each 512 MB of rows, or up to one per core."),
    Option("partition.default-name", TEXT, "Folder name of the partition whose column is "
           "NULL.",
           "__DEFAULT_PARTITION__", FIXED),
    Option("partition.legacy-name", BOOLEAN, "Whether dates in partition folder names are "
           "written as day numbers.", "true", FIXED),
    Option("data-file.prefix", FILE_NAME, "Prefix of data file names.", "data-"),
    Option("data-file.path-directory", FOLDER, "Subfolder of the table for its data files.",
           change=FIXED),
    Option("primary-key.nullable", BOOLEAN, "Whether key columns can be NULL. NULL is then a "
           "value like any other, and equal to itself.", "false", FIXED),
    Option("type", choice("table", "format-table", "materialized-table", "object-table",
                          "external-table"),
           "The type of the table. `external-table` is a table whose rows another system stores.",
           "table",
           NEVER, Refused("Keytide creates only tables that store their own files",
           "do not set it"),
           {"external-table": Refused("it is only for external tables", _DEFINE)}),
    Option("branch", TEXT, "The branch that is read and written when a statement names none. "
           "`t$branch_main` always is the main branch.", "main"),
    _refused("auto-create", BOOLEAN, "false", "Whether reading a missing table creates it.",
             "only CREATE TABLE and create_table create tables", "do not set it"),
    _refused("data-file.external-paths", TEXT, None, "Locations outside the table's folder for "
             "its data files.", "Keytide writes only below the table's own path",
             "create the table where its files are to be stored"),
    _refused("data-file.external-paths.strategy", choice("none", "specific-fs", "round-robin",
             "entropy-inject", "weight-robin"), "none", "How an external location is chosen.",
             "Keytide writes only below the table's own path",
             "create the table where its files are to be stored"),
    _refused("row-tracking.enabled", BOOLEAN, "false", "Whether rows have their own ids.",
             "writes assign no row ids", "do not set it"),
    _refused("data-evolution.enabled", BOOLEAN, "false", "Whether columns are stored separately.",
             "writes store whole rows", "do not set it"),
)  # fmt: skip

# -- order and merging -----------------------------------------------------------------------------

_ORDER = (
    Option("merge-engine", ENGINE, "How the versions of a key are merged into one row. See "
           "[Merge engines](#merge-engines).", "deduplicate", FIXED),
    Option("sequence.field", COLUMNS, "Columns that order the versions of a key. NULL sorts "
           "lowest. Without it, versions are ordered by arrival. With `upsert.mode`, several "
           "columns belong to several producers: each row has a value in exactly one of them and "
           "is compared by that column.", change=FIXED),
    Option("sequence.field.sort-order", choice("ascending", "descending"),
           "Which row wins: the one with the largest sequence value (`ascending`) or the "
           "smallest (`descending`).", "ascending", FIXED,
           used_with="sequence.field"),
    Option("sequence.auto-padding", PADDINGS, "How sequence numbers are derived from the "
           "sequence field, for releases of other engines that support only one number.",
           change=FIXED),
    Option("sequence.snapshot-ordering", BOOLEAN, "Whether versions are ordered by their commit.",
           "false", FIXED, ForOthers("without a sequence field, the later commit always wins")),
    Option("watermark.key", COLUMNS, "Columns that say how recent a row is, compared in order. "
           "They are also stored as the sequence field, so that every engine orders rows the "
           "same way.", change=FIXED),
    Option("tombstone.key", COLUMNS, "The one column that marks a row as a delete. Requires a "
           "watermark key.", change=FIXED),
    Option("tombstone.string-key-value", TEXT, "The string in the tombstone column that marks a "
           "delete. Default: any string.", change=FIXED, used_with="tombstone.key"),
    Option("upsert.dml-watermark", choice("copy", "statement-time", "explicit"), "The watermark "
           "of rows that UPDATE, DELETE and MERGE append. `copy`: the watermark of the old row. "
           "`statement-time`: the start time of the statement, if that is later. `explicit`: the "
           "value that the statement sets, which is then required.",
           "copy", used_with="watermark.key"),
    Option("upsert.mode", choice("none", "full", "partial"), "`none`: the versions of a key are "
           "merged when they are read. `full`: the table keeps a key index, and each write marks "
           "the rows that it replaces as deleted, so that reads merge nothing. `partial`: like "
           "`full`, and each write also merges a row with the current row of its key, by "
           "`fields.<column>.aggregate-function`. `Table.convert` converts a table from `none` "
           "to `full` and back.",
           "none", NEVER),
    Option("upsert.primary-key", EXACT_COLUMNS, "The key of a table with `upsert.mode`. Other "
           "engines see such a table as one without a key. Keytide sets it when the table is "
           "created.", change=NEVER),
    Option("upsert.hash-function", choice("none", "uuid", "xxh128", "xxhash", "murmur3", "md5"),
           "The hash function of the key index. `uuid` treats different spellings of a UUID as "
           "the same key.", "none", FIXED, used_with="upsert.mode"),
    Option("upsert.delete-record-column", COLUMN, "The column that marks a row as a delete: "
           "BOOLEAN `true`, the string `true` (case-insensitive) or `1`, or a number whose "
           "integer part is 1. It requires no watermark key.",
           change=FIXED, used_with="upsert.mode"),
    Option("upsert.row-errors", choice("refuse", "count"), "What a write does with an invalid "
           "row, such as one with NULL in the key or in the column to compare by. `refuse`: the "
           "whole write fails. `count`: the row is skipped and counted in `WriteResult.errors`, "
           "as stream consumers do.", "refuse",
           used_with="upsert.mode"),
    Option("upsert.drop-out-of-order-record", BOOLEAN, "Whether a row that arrives after a newer "
           "row of its key is dropped. If `false`, it is stored but never returned.", "false",
           FIXED,
           used_with="upsert.mode"),
    Option("upsert.out-of-order-record-column", COLUMN, "The BOOLEAN column in which each write "
           "records whether a row arrived after a newer row of its key. Values in the input are "
           "overwritten.",
           change=FIXED, used_with="upsert.mode"),
    Option("upsert.late-rows", choice("refuse", "leave-out"), "What a write to a table with "
           "`upsert.mode` = `partial` does with a row that arrives after a newer row of its key. "
           "`refuse`: the whole write fails. `leave-out`: the row is stored but not merged and "
           "never returned, as in Pinot, and counted in `WriteResult.out_of_order`.", "refuse",
           used_with="upsert.mode"),
    Option("upsert.metadata-ttl", AGE, "How far the sequence field of a row can be behind the "
           "newest row that its bucket has received. A row further behind counts as late, "
           "whatever its key. A duration if the sequence field is a time, otherwise an integer.",
           used_with="upsert.mode"),
    Option("upsert.deleted-keys-ttl", AGE, "Like `upsert.metadata-ttl`, and also how long "
           "deletes are kept, measured in the sequence field. Compactions remove deletes that "
           "are further behind.",
           change=Change.SHORTER, used_with="upsert.mode"),
    Option("upsert.compaction.invalid-records-threshold-percent", integer(0, 100), "Percentage "
           "of obsolete rows in a file at which a compaction rewrites it, whatever its size. "
           "Default: 0 if only the count is set.",
           used_with="upsert.mode"),
    Option("upsert.compaction.invalid-records-threshold-count", integer(1), "Number of obsolete "
           "rows that the file must also have. Default: 1 if only the percentage is set.",
           used_with="upsert.mode"),
    Option("upsert.compaction.buffer-time-period", DURATION, "Minimum age of a file before a "
           "compaction rewrites it. A full compaction ignores it.", used_with="upsert.mode"),
    Option("rowkind.field", COLUMN, "The column that holds the row kind: `+I`, `-U`, `+U` or "
           "`-D`.", change=FIXED),
    Option("ignore-delete", BOOLEAN, "Whether `-D` and `-U` rows are ignored, including rows "
           "that are already stored.",
           "false", FIXED, aliases=(
               "first-row.ignore-delete", "deduplicate.ignore-delete",
               "partial-update.ignore-delete")),
    Option("ignore-update-before", BOOLEAN, "Whether writes drop `-U` rows.", "false", ONE_WAY),
    Option("partial-update.remove-record-on-delete", BOOLEAN, "Whether a `-D` row deletes the "
           "whole row.",
           "false", FIXED),
    Option("partial-update.remove-record-on-sequence-group", COLUMNS, "Sequence fields of the "
           "groups in which a `-D` row deletes the whole row.", change=FIXED),
    Option("aggregation.remove-record-on-delete", BOOLEAN, "Whether a `-D` row deletes the whole "
           "row.",
           "false", FIXED),
)  # fmt: skip

# -- external tables -------------------------------------------------------------------------------


def _external(key: str, type_: ValueType, default: str | None, meaning: str) -> Option:
    use = Refused("it is only for external tables", _DEFINE)
    return Option(key, type_, meaning, default, NEVER, use)


_EXTERNAL = (
    _external("external.format", TEXT, None, "What is stored at the location: `parquet`, `csv` "
              "or `json` files in a folder, or a table of another format or of a database."),
    _external("external.location", TEXT, None, "Where the rows are stored: a path or URI, "
              "without secrets."),
    _external("external.schema-on-read", BOOLEAN, "false", "Whether the columns are read from "
              "the rows. The columns are those found when the table was defined or last "
              "refreshed."),
    _external("external.option.<name>", TEXT, None, "An option of the format, such as "
              "`delimiter` for `csv`."),
    _external("upsert.on-tie", choice("last-write", "tombstone-wins", "error"), None, "Which "
              "version of a key wins when watermarks are equal. `last-write`: the version "
              "committed last. `tombstone-wins`: a delete if there is one, otherwise the version "
              "with the larger values. `error`: none, and the read fails. Default: `last-write` "
              "if the format records the order of commits, otherwise `tombstone-wins`."),
)  # fmt: skip

# -- columns ---------------------------------------------------------------------------------------

_COLUMNS = (
    Option("fields.<column>.aggregate-function", TEXT, "The aggregate function of the column.",
           change=FIXED),
    Option("fields.default-aggregate-function", TEXT, "The aggregate function of columns that "
           "have none of their own.",
           change=FIXED),
    Option("fields.<column>.post-merge-expression", TEXT, "A SQL expression over the columns of "
           "the row. It computes the column whenever a row is merged with an earlier row of its "
           "key. Requires `upsert.mode` = `partial`.", change=FIXED,
           used_with="upsert.mode"),
    Option("fields.<columns>.sequence-group", COLUMNS, "Columns that follow the order of the "
           "columns in the option's name. Each group is ordered separately.", change=FIXED),
    Option("fields.<column>.ignore-retract", BOOLEAN, "Whether the function ignores `-D` and "
           "`-U` rows.", "false", FIXED),
    Option("fields.<column>.count-values", BOOLEAN, "Whether writes store 1 instead of a value. "
           "Keytide sets it with the function `count`.", "false"),
    Option("fields.<column>.distinct", BOOLEAN, "Whether `listagg` and `collect` keep each "
           "distinct value once.", "false", FIXED, functions=("listagg", "collect")),
    Option("fields.<column>.list-agg-delimiter", TEXT, "Separator between the values of "
           "`listagg`.", ",",
           FIXED, functions=("listagg",)),
    Option("fields.<column>.nested-key", NAMES, "Fields of a nested row that are its key, for "
           "`nested_update` and `nested_partial_update`.", change=FIXED, functions=_NESTED),
    Option("fields.<column>.nested-sequence-field", NAMES, "Fields that order the nested rows of "
           "a key.", change=FIXED, functions=("nested_update",)),
    Option("fields.<column>.nested-key-null-strategy", choice("merge", "ignore", "error"),
           "What happens to nested rows with NULL in their key.", "merge", FIXED,
           functions=_NESTED),
    Option("fields.<column>.count-limit", integer(0), "Maximum number of nested rows that "
           "`nested_update` keeps.", change=FIXED, functions=("nested_update",)),
    Option("fields.<column>.merge-map-with-keytime.ts-field", TEXT, "The field that orders the "
           "values of a map key, for `merge_map_with_keytime`.", change=FIXED,
           functions=("merge_map_with_keytime",)),
    Option("fields.<column>.ts-field", TEXT, "Short form of "
           "`fields.<column>.merge-map-with-keytime.ts-field`.", change=FIXED,
           functions=("merge_map_with_keytime",)),
    Option("fields.<columns>.default-value", TEXT, "Value that readers return instead of NULL. "
           "Stored rows keep NULL."),
    Option("fields.<column>.stats-mode", STATS_MODE, "Which statistics are collected for the "
           "column.",
           use=ForOthers("'metadata.stats-mode' applies to all columns")),
    Option("user.<name>", TEXT, "Your own properties. Keytide does not read them."),
)  # fmt: skip

# -- writing ---------------------------------------------------------------------------------------

_WRITING = (
    Option("constraint.<name>", TEXT, "A condition that every written row must satisfy: "
           "`CONSTRAINT name CHECK (...)`."),
    Option("generated.<column>", TEXT, "A SQL expression over other columns of the row. It "
           "computes the column when a row is written: `GENERATED ALWAYS AS (...)`. It can be "
           "set only when the table is created, and can be removed later."),
    Option("file.format", choice("parquet", "orc", "avro"), "Format of new data files. A table "
           "can contain files of several formats. `avro` is written row by row, which takes many "
           "times as long, and its files are always read completely.", "parquet"),
    Option("file.format.per.level", LEVELS, "Format of new files by level, such as "
           "`0:avro,5:parquet`. Other levels use `file.format`. A compaction rewrites a file "
           "whose level has another format. Only for tables whose versions are merged.", ""),
    Option("file.compression", choice("zstd", "snappy", "gzip", "lz4", "none"), "Compression "
           "codec of data files. If not set, Keytide chooses. Small files at level 0 use `lz4`, "
           "because it makes frequent upserts faster and the next compaction rewrites these "
           "files anyway. With `changelog-producer` = `lookup`, all files below the highest "
           "level use `lz4`. Other files use `zstd`; in them, columns of short values use `lz4` "
           "or no compression if that takes little more space, because readers decompress those "
           "much faster. A column that compression would hardly shrink is not compressed."),
    Option("file.compression.zstd-level", integer(1, 22), "Compression level of `zstd`.", "1"),
    Option("parquet.enable.dictionary", BOOLEAN, "Whether columns of Parquet files can have "
           "dictionaries. `true`: columns with few distinct values get one, except bytes and "
           "DECIMAL with more than 18 digits, whose dictionaries some readers misread under a "
           "filter.",
           "true"),
    Option("target-file-size", size(1), "Approximate size of data files; a sorted run is split "
           "into files of this size. Smaller files can be pruned better but take longer to list.",
           "128 mb"),
    Option("data-file.thin-mode", BOOLEAN, "Whether to omit the `_KEY_` columns from data files. "
           "Files are smaller, but Paimon releases before 1.0 cannot read them.", "false"),
    Option("metadata.stats-mode", STATS_MODE, "Which statistics are collected for columns.",
           "truncate(16)"),
    Option("dynamic-partition-overwrite", BOOLEAN, "Whether an overwrite without a partition "
           "replaces only the partitions of its rows. `false`: it replaces the whole table. Mode "
           "`overwrite` of a Spark DataFrame writer always replaces the whole table.", "true"),
    Option("write.count-out-of-order", BOOLEAN, "Whether a write counts the rows that are older "
           "than rows that arrived before them. This costs a lookup of their keys.", "false"),
    Option("write.distribution", choice("auto", "hash", "none"), "How the rows of a Spark "
           "DataFrame are distributed to the tasks that write them. `hash`: a shuffle sends each "
           "bucket to one task, which writes one sorted run. `none`: each task writes the rows "
           "of its partition, one run per bucket; a load takes a third to a half less time, and "
           "readers merge the runs until they are compacted. `auto`: `none` if more than 10 MB "
           "are written into an empty table without partitions, or replace all its rows, and no "
           "bucket gets as many runs as `num-sorted-run.compaction-trigger`; otherwise `hash`. A "
           "DataFrame with one partition is never shuffled, and neither are writes of the data "
           "source and of streams. MERGE and ingestion always bring the rows of a key together.",
           "auto"),
    Option("write-buffer-size", size(1), "Size of the rows that a distributed write collects "
           "into one sorted run. Fewer and larger runs merge faster. A task needs about four "
           "times as much memory.", "256 mb"),
    Option("spark.driver-work.max-size", SIZE, "Maximum amount of data that a write, a row-level "
           "change or a compaction on a Spark session reads for its work to run in threads of "
           "the driver, without Python tasks. It counts files, and DataFrames whose size Spark "
           "knows; rows that pass through Spark count four times. 0: executors do all the work. "
           "The session setting `spark.keytide.driver-work.max-size` overrides it.", "128 mb"),
    Option("commit.max-retries", integer(0), "Maximum number of retries when another commit "
           "takes the snapshot id first. An append is only rebased, never rewritten, so a high "
           "number costs nothing but waiting time.", "100"),
    Option("commit.min-retry-wait", DURATION, "Minimum wait before a commit is retried.", "2 ms"),
    Option("commit.max-retry-wait", DURATION, "Maximum wait before a commit is retried.", "500 ms"),
    Option("manifest.merge-min-count", integer(2), "Number of manifests at which they are merged "
           "into one. A compaction merges two thirds of that number.", "30"),
    Option("manifest.target-file-size", size(1), "Target size of a manifest. Smaller manifests "
           "that reach it together are merged; larger ones are left unchanged.", "8 mb"),
    Option("manifest.full-compaction-threshold-size", SIZE, "Total size of manifests that are "
           "small or delete files at which they are rewritten without the deleted entries.",
           "16 mb"),
    Option("write-only", BOOLEAN, "Whether writes skip compaction. `Table.compact`, `CALL "
           "sys.compact` or another engine must then compact the table.", "false"),
)  # fmt: skip

# -- reading ---------------------------------------------------------------------------------------

_READ_GIVES = "a read of Keytide takes its snapshot from the read itself, never from a table option"
_READ_INSTEAD = (
    "use scan(snapshot_id=...), scan(tag=...) or scan(as_of=...), or in SQL VERSION AS OF, "
    "TIMESTAMP AS OF or /*+ OPTIONS(...) */"
)


def _read(key: str, type_: ValueType, default: str | None, meaning: str) -> Option:
    return _refused(key, type_, default, meaning, _READ_GIVES, _READ_INSTEAD)


_ROWS_OF_READS = "a read itself selects the rows that it returns, never a table option"
_ROWS_INSTEAD = (
    "use scan(skip_upsert=True) or scan(skip_upsert_delete=True), or in SQL /*+ OPTIONS(...) */"
)

_TWO_BRANCHES = "it would close the table to all but readers of rows"
_BY_OTHERS = "set it with the engine that writes the table, or read t$branch_x"

_FILTERS = "file-index.bloom-filter.columns"
_OTHER_INDEX = "writes create no indexes of this type"

_READING = (
    Option("read.memory", size(1), "Maximum memory of a merging read, over all its threads. "
           "DELETE, UPDATE and MERGE can use the same amount again for their own computation in "
           "this process. More memory is slightly faster.", "1 gb"),
    _read("scan.snapshot-id", integer(1, 2**63 - 1), None, "The snapshot to read."),
    _read("scan.tag-name", TEXT, None, "The tag to read."),
    _read("scan.version", TEXT, None, "The snapshot or tag to read."),
    _read("scan.timestamp", TEXT, None, "Time of the snapshot to read."),
    _read("scan.timestamp-millis", integer(0, 2**63 - 1), None, "Like `scan.timestamp`, in epoch "
          "milliseconds."),
    _read("scan.watermark", integer(-(2**63), 2**63 - 1), None,
          "Stream watermark of the snapshot to read."),
    _read("scan.creation-time-millis", integer(0, 2**63 - 1), None,
          "Read only snapshots created since this time."),
    _read("scan.file-creation-time-millis", integer(0, 2**63 - 1), None,
          "Read only files created since this time."),
    _read("scan.mode", choice("default", "latest-full", "full", "latest", "latest-delta",
                              "compacted-full", "from-timestamp", "from-creation-timestamp",
                              "from-file-creation-time", "from-snapshot", "from-snapshot-full",
                              "incremental"), "default", "Where reads start."),
    _refused("scan.skip-upsert", BOOLEAN, "false", "Whether a read returns every stored row of a "
             "table with a key index.", _ROWS_OF_READS, _ROWS_INSTEAD),
    _refused("scan.skip-upsert-delete", BOOLEAN, "false", "Whether a read of a table with a key "
             "index returns the last row of each key, including deletes.", _ROWS_OF_READS,
             _ROWS_INSTEAD),
    _read("incremental-between", TEXT, None, "Two snapshots or tags; the changes between them "
          "are read."),
    _read("incremental-between-timestamp", TEXT, None, "Like `incremental-between`, with two "
          "times."),
    _read("incremental-between-scan-mode", choice("auto", "delta", "changelog", "diff"), "auto",
          "How changes are found."),
    _refused("scan.fallback-branch", TEXT, None, "Branch that provides missing partitions.",
             _TWO_BRANCHES, _BY_OTHERS),
    _refused("scan.primary-branch", TEXT, None, "Branch that is read first.",
             _TWO_BRANCHES, _BY_OTHERS),
    _kept("scan.manifest.parallelism", integer(1), None, "Number of threads that read manifests.",
          "reads choose it automatically"),
    _kept("scan.max-splits-per-task", integer(1), "10", "Maximum number of splits per Flink task.",
          "reads choose it automatically"),
    _kept("scan.plan-sort-partition", BOOLEAN, "false", "Whether splits are sorted by partition.",
          "reads choose it automatically"),
    _kept("source.split.target-size", SIZE, "128 mb", "Target size of a split.",
          "reads are split by 'read.memory'"),
    _kept("source.split.open-file-cost", SIZE, "4 mb", "Size that opening a file counts as.",
          "reads are split by 'read.memory'"),
    _kept("read.batch-size", integer(1), "1024", "Number of rows per batch.",
          "batch sizes follow 'read.memory'"),
    _kept("file-reader-async-threshold", SIZE, "10 mb", "File size above which files are read "
          "asynchronously.",
          "reads choose it automatically"),
    Option("lookup.cache-max-memory-size", SIZE, "Maximum memory that a process uses to cache "
           "footers, file indexes, and keys and rows of lookups for later reads of the same "
           "files. The most recently used are kept. The cache is shared by all tables, and each "
           "read trims it to the limit of its own table.", "256 mb"),
    Option("file-index.read.enabled", BOOLEAN, "Whether reads use file indexes.", "true"),
    Option("file-index.in-manifest-threshold", SIZE, "File indexes up to this size are written "
           "into manifests, larger ones into separate files.", "500 b"),
    Option("file-index.bloom-filter.columns", COLUMNS, "Columns whose new data files get a bloom "
           "filter. `get` and conditions with `=` and IN then skip files that do not contain the "
           "value."),
    Option("file-index.bloom-filter.<column>.fpp", SHARE, "False-positive probability of the "
           "bloom filter.", "0.1", used_with=_FILTERS),
    Option("file-index.bloom-filter.<column>.items", integer(1), "Number of distinct values per "
           "file that the filter is sized for. Default: the number of rows in the file, which is "
           "also the maximum.", used_with=_FILTERS),
    Option("file-index.<type>.columns", COLUMNS, "Columns with an index of this type.",
           use=ForOthers(_OTHER_INDEX)),
    Option("file-index.<type>.<columns>.<setting>", TEXT, "A setting of an index of this type.",
           use=ForOthers(_OTHER_INDEX)),
    Option("record-level.expire-time", DURATION, "Age at which a row of a table with a primary "
           "key is no longer returned. Compactions remove expired rows if the row of a key is "
           "one of its versions. Rows that are combined from several versions stay stored.",
           used_with="record-level.time-field"),
    Option("record-level.time-field", COLUMN, "The column from which the age of a row is "
           "measured: INT in seconds, BIGINT in seconds or (from 10^12) milliseconds, or "
           "TIMESTAMP. A row with NULL never expires."),
)  # fmt: skip

# -- changelogs and streams ------------------------------------------------------------------------

_NO_STREAM = "set it where the table is followed: in follow(...) or as a readStream option"

_CHANGES = (
    Option("changelog-producer", choice("none", "input", "lookup", "full-compaction"),
           "Which changelog files are stored. `none`: no files; `changes(mode='diff')` and "
           "`follow` do not need any. `input`: every write also stores its rows as changelog, "
           "unchanged. `full-compaction`: a full compaction stores the changes of the keys "
           "written since the previous one. `lookup`: each write is followed by a compaction "
           "that stores the changes of the keys it wrote.",
           "none"),
    Option("changelog-producer.row-deduplicate", BOOLEAN, "Whether changelogs created by "
           "compactions omit rows that did not change. If `false`, such rows are written as a "
           "`-U` and a `+U`.",
           "false"),
    Option("changelog-producer.row-deduplicate-ignore-fields", COLUMNS, "Columns that are "
           "ignored by this comparison. A `-U` row can then contain a value of these columns "
           "that no `+U` row had.",
           used_with="changelog-producer.row-deduplicate"),
    _kept("changelog-producer.compaction-interval", DURATION, "0 ms",
          "Time between two full compactions.", "use 'full-compaction.delta-commits'"),
    Option("full-compaction.delta-commits", integer(1), "Number of commits between two full "
           "compactions. If it is not set and full compactions create the changelog, every write "
           "is followed by a full compaction that rewrites the buckets it touched."),
    Option("changelog-file.compression", choice("zstd", "snappy", "gzip", "lz4", "none"),
           "Compression codec of changelog files. Default: the codec of data files, and `lz4` "
           "for small files of `changelog-producer` = `lookup`, because each write waits for "
           "them."),
    Option("changelog-file.format", choice("parquet", "orc", "avro"),
           "Format of changelog files. Default: the format of data files."),
    Option("changelog-file.prefix", FILE_NAME, "Prefix of changelog file names.", "changelog-"),
    Option("changelog-file.stats-mode", STATS_MODE,
           "Which statistics are collected for changelog files. Default: those of data files."),
    Option("changelog.num-retained.max", integer(1), "Maximum number of latest commits whose "
           "changelog is kept. Default: the maximum number of snapshots."),
    Option("changelog.num-retained.min", integer(1), "Minimum number of commits whose changelog "
           "is kept, whatever their age. Default: the minimum number of snapshots."),
    Option("changelog.time-retained", DURATION, "How long changelogs are kept. Default: as long "
           "as snapshots. If it is longer, or one of the two numbers is larger, the changelog of "
           "an expired snapshot is kept: the files of `changelog-producer` or, with `none`, the "
           "rows as they were written."),
    _kept("delete.force-produce-changelog", BOOLEAN, "false",
          "Whether deleting partitions writes a changelog.",
          "deleting rows always writes one, TRUNCATE never does"),
    _kept("streaming-read-overwrite", BOOLEAN, "false",
          "Whether streaming reads emit overwrites.", "all modes except 'changelog' emit them"),
    _kept("streaming-read-mode", choice("log", "file"), None, "What streams are read from.",
          "streams are read from files"),
    _kept("consumer-id", TEXT, None, "Name under which a stream stores its position.", _NO_STREAM),
    Option("consumer.expiration-time", DURATION, "How long after its last update the position of "
           "a consumer is removed; it is removed when snapshots expire. Default: never. Until "
           "then it prevents snapshots from expiring, even if the consumer never returns."),
    _kept("consumer.ignore-progress", BOOLEAN, "false", "Whether the stored position is ignored.",
          _NO_STREAM),
    _kept("consumer.mode", choice("exactly-once", "at-least-once"), "exactly-once",
          "Delivery guarantee of the stored position.",
          "a change that was emitted in part is emitted again "
                                          "completely"),
    Option("consumer.changelog-only", BOOLEAN, "Whether a stored position prevents only "
           "changelogs from expiring, not snapshots. For consumers with mode `delta` or "
           "`changelog`.", "false"),
    _kept("snapshot.watermark-idle-timeout", DURATION, None,
          "Time after which an idle source no longer delays the watermark.", _NO_STREAM),
    _kept("sink.key-only-deletes.enabled", BOOLEAN, "false",
          "Whether deletes can contain only the key.", "a delete never needs more than its key"),
)  # fmt: skip

# -- compaction ------------------------------------------------------------------------------------

_NO_COMPACTION = "compaction follows the other options"
_NO_SORTING = "sorting compactions take their own sample of the rows"


def _compacting(key: str, type_: ValueType, default: str | None, meaning: str) -> Option:
    return _kept(key, type_, default, meaning, _NO_COMPACTION)


_COMPACTION = (
    Option("num-sorted-run.compaction-trigger", integer(1), "Number of sorted runs of a bucket "
           "at which a write compacts the bucket after its commit. Each file of level 0 and each "
           "higher level is a run. A higher number makes writes cheaper and reads more expensive.",
           "5"),
    Option("num-sorted-run.stop-trigger", integer(1), "Maximum number of sorted runs of a "
           "bucket. Above it, a write continues compacting until there are fewer, or waits for "
           "the running background compaction. Default: 12 times the compaction trigger, or the "
           "trigger plus 3 without background compaction."),
    Option("compaction.background", BOOLEAN, "Whether larger compactions run in the background. "
           "A write then returns as soon as its rows are durable, and a thread of its process "
           "compacts while the next writes continue, one compaction per table at a time. "
           "`Table.close`, the end of a `with` block and the end of the process wait for it. "
           "Compactions that make rows visible always run in the write itself.", "true"),
    Option("compaction.background.min-size", SIZE, "Minimum size of buckets whose compactions "
           "run in the background. In smaller ones, they run in the write.", "256 kb"),
    Option("compaction.background.min-runs", integer(1), "Number of sorted runs of a bucket at "
           "which a background compaction starts: a few large compactions disturb the writer "
           "less than many small ones. Default: 4 times the compaction trigger. Earlier "
           "compactions wait until there has been no write for 0.2 seconds, or until "
           "`Table.close` or the end of the process."),
    Option("num-levels", integer(2), "Number of levels of a bucket; `$ro` reads the highest. "
           "Default: the compaction trigger plus 1."),
    _compacting("compaction.force-rewrite-all-files", BOOLEAN, "false",
                "Whether a full compaction rewrites every file."),
    _compacting("compaction.force-up-level-0", BOOLEAN, "false",
                "Whether every compaction takes all of level 0."),
    Option("compaction.incremental-size-threshold", SIZE, "Size of the data below the highest "
           "level that triggers a full compaction of a bucket."),
    Option("compaction.max-size-amplification-percent", integer(0), "Size of the newer data, in "
           "percent of the oldest run, that triggers a full compaction of a bucket.", "200"),
    Option("compaction.optimization-interval", DURATION, "Time after which a write compacts a "
           "bucket fully, even if it has few runs."),
    Option("compaction.size-ratio", integer(0), "Percentage by which the next older run can be "
           "larger than the runs already selected and still be compacted with them.", "1"),
    Option("compaction.total-size-threshold", SIZE, "Buckets smaller than this are compacted "
           "fully, even if they have few runs."),
    Option("tombstone.retention", DURATION_OR_FOREVER, "How long a delete is kept if a late "
           "older row could bring its key back. The time starts with the first compaction that "
           "processes the delete; after it, a full compaction removes the delete.", "forever"),
    Option("version.retention", DURATION_OR_FOREVER, "How long versions of a key stay separate "
           "if a late row could belong between them and their order matters. The time starts "
           "with the first compaction that processes them; after it, a compaction merges them.",
           "forever"),
    _compacting("compaction.offpeak.start.hour", integer(-1, 23), "-1",
                "Start of the hours in which compactions can use more resources."),
    _compacting("compaction.offpeak.end.hour", integer(-1, 23), "-1", "End of these hours."),
    _compacting("compaction.offpeak-ratio", integer(0), "0", "Size ratio in these hours."),
    _compacting("commit.force-compact", BOOLEAN, "false", "Whether commits wait for compaction."),
    Option("force-lookup", BOOLEAN, "Whether compactions look up older values, so that they need "
           "only some of the runs instead of all of them.", "false", FIXED),
    Option("lookup-compact", choice("radical", "gentle"), "With `changelog-producer` = `lookup`: "
           "`radical` compacts after each write. `gentle` compacts after as many runs of level 0 "
           "as `lookup-compact.max-interval` says. The changelog is emitted with the compaction.",
           "radical"),
    Option("lookup-compact.max-interval", integer(1), "Maximum number of runs of level 0 in a "
           "bucket before they are compacted together. Default: twice "
           "`num-sorted-run.compaction-trigger`.", used_with="lookup-compact"),
    Option("lookup-wait", BOOLEAN, "With `changelog-producer` = `lookup`: whether a write waits "
           "for this compaction. `false` leaves it to `Table.compact` and to compactions "
           "triggered by the number of runs.", "true"),
    Option("lookup.cache-file-retention", DURATION, "How long a lookup file is kept after its "
           "last use. A lookup file is a copy of a data file that is laid out for looking up "
           "older versions. It is stored in the temporary folder of the process that writes or "
           "reads changes.", "1 h"),
    Option("lookup.cache-max-disk-size", SIZE, "Maximum total size of the lookup files of a "
           "process. Default: half of the free disk space, for each file."),
    _kept("sort-compaction.local-sample.magnification", integer(1), "1000",
          "Sample size of a sorting compaction.", _NO_SORTING),
    _kept("sort-compaction.range-strategy", choice("quantity", "size"), "quantity",
          "How a sorting compaction splits rows into ranges.", _NO_SORTING),
    _kept("zorder.var-length-contribution", integer(1), "8", "Number of bytes of a string that a "
          "z-order uses.",
          _NO_SORTING),
    Option("deletion-vectors.enabled", BOOLEAN, "With a primary key: whether each write is "
           "followed by a compaction that marks replaced versions as deleted, so that reads "
           "merge nothing. Rows become visible when they are compacted. Without a primary key: "
           "whether DELETE, UPDATE and MERGE mark rows as deleted instead of rewriting the files "
           "that contain them.", "false", FIXED),
    _refused("deletion-vectors.modifiable", BOOLEAN, "false", "Whether other engines can change "
             "`deletion-vectors.enabled` later.",
             "older versions of rows written without vectors would become visible",
             "do not set it"),
    Option("deletion-vectors.bitmap64", BOOLEAN, "Whether deletion vectors use 64 bits, which "
           "not every engine can read.", "false", used_with="deletion-vectors.enabled"),
    Option("deletion-vectors.merge-on-read", BOOLEAN, "Whether reads also merge rows that are "
           "not compacted yet, so that they are visible immediately.", "false",
           used_with="deletion-vectors.enabled"),
    _kept("deletion-vector.index-file.target-size", SIZE, "2 mb", "Target size of deletion "
          "vector files.",
          "all vectors of a bucket are in one file, as the format requires"),
    Option("pk-clustering-override", BOOLEAN, "Whether files are sorted by `clustering.columns`.",
           "false", FIXED, Refused("files that are not sorted by key cannot be merged",
                                   "do not set it")),
    _kept("clustering.columns", COLUMNS, None, "Columns by which files are sorted.",
          "files are sorted by the primary key"),
)  # fmt: skip

# -- snapshots, tags, partitions -------------------------------------------------------------------

_NO_CLASSES = "Keytide calls no Java classes"
_NO_MARKS = "writes do not mark partitions as done"

_HISTORY = (
    Option("snapshot.num-retained.max", integer(1), "Maximum number of snapshots. Older ones "
           "expire, whatever their age. Must be at least `snapshot.num-retained.min`. Default: "
           "no limit."),
    Option("snapshot.num-retained.min", integer(1), "Minimum number of snapshots. The latest "
           "ones are kept, whatever their age.", "10"),
    Option("snapshot.time-retained", DURATION, "How long snapshots are kept beyond the minimum "
           "number. Each commit expires older ones, unless the table is `write-only`. A longer "
           "time lets slow readers, streams and retried writes find the snapshot they started "
           "from, and uses storage for replaced data.", "1 h"),
    Option("snapshot.expire.limit", integer(1), "Maximum number of snapshots that one commit "
           "expires.", "50"),
    Option("snapshot.expire.execution-mode", choice("sync", "async"), "Whether a commit waits "
           "until snapshots are expired (`sync`), or a thread of its process expires them "
           "(`async`).", "sync"),
    _kept("snapshot.clean-empty-directories", BOOLEAN, "false", "Whether expiry also deletes "
          "empty folders.",
          "empty folders are not deleted"),
    _kept("snapshot.ignore-empty-commit", BOOLEAN, None, "Whether empty commits create no "
          "snapshot.",
          "a write without rows creates no snapshot"),
    Option("tag.automatic-creation", choice("none", "process-time", "watermark", "batch"),
           "When writes create tags automatically. `process-time`: one for each period that has "
           "ended, on the first snapshot after it. `watermark`: the same, but periods follow the "
           "stream watermark that other engines store. `batch`: one per day, on the latest "
           "snapshot after each write that is not part of a stream.", "none"),
    Option("tag.automatic-completion", BOOLEAN, "Whether periods without a commit get tags too, "
           "one with each later snapshot.", "false"),
    Option("tag.batch.customized-name", TEXT, "Name of the tag created by `batch`. Default: "
           "`batch-write-` and the day."),
    _kept("tag.callbacks", TEXT, "", "Classes that are notified of new tags.", _NO_CLASSES),
    Option("tag.callback.<class>.param", TEXT, "A parameter of such a class.",
           use=ForOthers(_NO_CLASSES)),
    _kept("tag.create-success-file", BOOLEAN, "false", "Whether a tag has a success file.",
          "a tag exists as soon as its file exists"),
    Option("tag.creation-delay", DURATION, "How long after the end of a period its tag is "
           "created, so that late data is included. Must be less than a period.", "0 ms"),
    Option("tag.creation-period", choice("daily", "hourly", "two-hours"), "Length of the periods "
           "of tags, by the local clock of the writer.", "daily"),
    Option("tag.creation-period-duration", DURATION, "Other length of the periods, in whole "
           "minutes. Overrides `tag.creation-period`."),
    Option("tag.default-time-retained", DURATION, "How long a tag is kept if its creator sets no "
           "time. Default: forever."),
    Option("tag.num-retained-max", integer(1), "Maximum number of automatic tags; the oldest are "
           "deleted. Tags created by users do not count."),
    Option("tag.period-formatter", choice("with_dashes", "without_dashes",
                                          "without_dashes_and_spaces"),
           "Format of the names of automatic tags.", "with_dashes"),
    Option("tag.time-expire-enabled", BOOLEAN, "Whether writes delete expired tags. They check "
           "at most once a minute.", "true"),
    _kept("metastore.partitioned-table", BOOLEAN, "false", "Whether partitions are registered in "
          "a metastore.",
          "a lake is a folder, without a metastore"),
    _kept("metastore.tag-to-partition", TEXT, None, "Partition column that lists tags.",
          "a lake is a folder, without a metastore"),
    _kept("metadata.iceberg.storage", choice("disabled", "table-location", "hadoop-catalog",
                                             "hive-catalog", "rest-catalog"), "disabled",
          "Whether Iceberg metadata is written.", "use 'publish' = 'iceberg'"),
    Option("partition.expiration-time", DURATION, "Age at which partitions are dropped. Checked "
           "after the first commit of a process and then every "
           "`partition.expiration-check-interval`. Default: never."),
    Option("partition.expiration-check-interval", DURATION, "How often a committing process "
           "checks for expired partitions.", "1 h", used_with="partition.expiration-time"),
    Option("partition.expiration-max-num", integer(1), "Maximum number of partitions dropped at "
           "a time, oldest first.", "100", used_with="partition.expiration-time"),
    Option("partition.expiration-strategy", choice("values-time", "update-time"), "Whether the "
           "age of a partition follows from its values (`values-time`) or from its last write "
           "(`update-time`).",
           "values-time", used_with="partition.expiration-time"),
    Option("partition.timestamp-formatter", TEXT, "Java date pattern of a partition's time, such "
           "as `yyyyMMdd`. Default: `2026-01-31` or `2026-01-31 12:00:00`. Partitions whose "
           "values do not match never expire.", used_with="partition.expiration-time"),
    Option("partition.timestamp-pattern", TEXT, "How the time of a partition is built from its "
           "values, such as `$dt $hour:00:00`. Default: the first value.",
           used_with="partition.expiration-time"),
    _kept("partition.end-input-to-done", BOOLEAN, "false", "Whether the end of the input marks "
          "partitions as done.",
          _NO_MARKS),
    _kept("partition.mark-done-action", TEXT, "success-file", "How partitions are marked as done.",
          _NO_MARKS),
    _kept("partition.idle-time-to-report-statistic", DURATION, "1 h",
          "Time after which statistics of an idle partition are reported.", _NO_MARKS),
)  # fmt: skip

# -- publishing ------------------------------------------------------------------------------------

_PUBLISHING = (
    Option("publish", FORMS, "Formats in which each commit, and `Table.publish`, also publishes "
           "the table, over the same data files: `delta` writes a Delta Lake log and `iceberg` "
           "writes Apache Iceberg metadata into the table's folder. A snapshot is published only "
           "if none of its rows has to be merged; until then, readers see the last published "
           "one. If you reset the option, nothing new is published, and what was published stays."),
    Option("publish.iceberg.format-version", ICEBERG_VERSION, "Version of the Iceberg format. "
           "With `3`, deleted rows are in deletion vectors and rows have ids. A change applies "
           "to the next publication: from `2` to `3` it continues the Iceberg table, from `3` to "
           "`2` it creates another one.", "2",
           used_with="publish"),
)  # fmt: skip

# -- writers of other engines ----------------------------------------------------------------------

_SORTS = "writes sort in their own way"
_METADATA = "writes choose it automatically"
_LOOKED_UP = "each write looks up its keys, and none are forgotten"

_WRITERS = (
    _kept("async-file-write", BOOLEAN, "true", "Whether files are written asynchronously.",
          _METADATA),
    _kept("bucket-append-ordered", BOOLEAN, "true", "Whether appended rows keep their order.",
          "the order of rows in reads is not guaranteed"),
    _kept("cache-page-size", SIZE, "64 kb", "Page size of the lookup cache.", _METADATA),
    _kept("page-size", SIZE, "64 kb", "Page size of the write buffer.", _METADATA),
    _kept("commit.force-create-snapshot", BOOLEAN, "false", "Whether empty commits create a "
          "snapshot.",
          "a write without rows creates no snapshot"),
    _kept("commit.timeout", DURATION, None, "How long a commit is retried.",
          "use 'commit.max-retries'"),
    _kept("commit.user-prefix", TEXT, None, "Prefix of commit user names.",
          "the writer sets the whole name"),
    _kept("cross-partition-upsert.bootstrap-parallelism", integer(1), "10",
          "Number of tasks that load the existing keys.", _LOOKED_UP),
    _kept("cross-partition-upsert.index-ttl", DURATION, None, "Time after which keys are "
          "forgotten.",
          _LOOKED_UP),
    _kept("file.block-size", SIZE, None, "Size of a row group.", _METADATA),
    _kept("file.compression.per.level", LEVELS, "", "Compression codec by level.",
          "'file.compression' applies to all levels"),
    _kept("file.suffix.include.compression", BOOLEAN, "false", "Whether file names contain the "
          "codec.",
          "file names do not contain it"),
    Option("index-file-in-data-file-dir", BOOLEAN, "Whether index files are stored next to data "
           "files.",
           "false", FIXED, ForOthers("index files have a folder of their own"),
           {"true": Refused("Keytide stores index files in a folder of their own",
                            "do not set it")}),
    _kept("local-merge-buffer-size", SIZE, None, "Memory for merging rows before they are "
          "shuffled.",
          _METADATA),
    _kept("local-sort.max-num-file-handles", integer(2), "128", "Maximum number of open files "
          "while sorting.",
          _SORTS),
    _kept("sort-engine", choice("min-heap", "loser-tree"), "loser-tree", "Algorithm that merges "
          "sorted runs.",
          _SORTS),
    _kept("sort-spill-buffer-size", SIZE, "64 mb", "Memory before sorting spills to disk.", _SORTS),
    _kept("sort-spill-threshold", integer(1), None, "Number of sorted runs before merging spills "
          "to disk.", _SORTS),
    _kept("spill-compression", TEXT, "zstd", "Compression codec of spilled data.", _SORTS),
    _kept("write-buffer-for-append", BOOLEAN, "false", "Whether appends are buffered.", _SORTS),
    _kept("write-buffer-spillable", BOOLEAN, None, "Whether the write buffer can spill to disk.",
          _SORTS),
    _kept("write-buffer-spill.max-disk-size", SIZE, None, "Maximum disk space for the spilled "
          "write buffer.", _SORTS),
    _kept("write-max-writers-to-spill", integer(1), "10", "Number of writers at which they spill "
          "to disk.", _SORTS),
    _kept("manifest.compression", TEXT, "zstd", "Compression codec of manifests.", _METADATA),
    _kept("manifest.format", choice("avro"), "avro", "File format of manifests.", _METADATA),
    _kept("write-manifest-cache", SIZE, "0 b", "Memory for caching manifests.", _METADATA),
    _kept("metadata.stats-dense-store", BOOLEAN, "true", "Whether empty statistics are omitted.",
          _METADATA),
    _kept("metadata.stats-keep-first-n-columns", integer(-1), "-1", "Number of columns with "
          "statistics.",
          _METADATA),
    _kept("metadata.stats-mode.per.level", LEVELS, "", "Statistics mode by level.",
          "'metadata.stats-mode' applies to all levels"),
    _kept("write.sequence-number-init-mode", choice("scan", "snapshot"), "scan",
          "Where writers find the highest sequence number.", _METADATA),
)  # fmt: skip

SECTIONS: dict[str, tuple[Option, ...]] = {
    "Keys and layout": _LAYOUT,
    "Ordering and merging": _ORDER,
    "External tables": _EXTERNAL,
    "Columns": _COLUMNS,
    "Writing": _WRITING,
    "Reading": _READING,
    "Changelogs and streams": _CHANGES,
    "Compaction": _COMPACTION,
    "Snapshots, tags and partitions": _HISTORY,
    "Publishing": _PUBLISHING,
    "Options for writers of other engines": _WRITERS,
}
"""The rows, by subject. A key is matched by the first row that fits."""
