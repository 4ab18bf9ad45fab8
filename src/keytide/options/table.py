"""The table of table options: every key that Keytide knows, one row each.

Keys are those of Apache Paimon, and a few of our own. Whatever has to be known of an option is
said here: how its text is read, its default, what it means, when it may change, and what Keytide
does with it. Options that other engines act on are listed too, because the same table is theirs
as well.
"""

from __future__ import annotations

from keytide.options.option import Change, ForOthers, Option, Refused
from keytide.options.value_types import (
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
    ValueType,
    choice,
    integer,
    size,
)

__all__ = ["SECTIONS"]

FREE, FIXED, ONE_WAY, NEVER = Change.FREE, Change.FIXED, Change.ONE_WAY, Change.NEVER

_NESTED = ("nested_update", "nested_partial_update")


def _kept(key: str, type_: ValueType, default: str | None, meaning: str, here: str) -> Option:
    return Option(key, type_, meaning, default, use=ForOthers(here))


def _refused(
    key: str, type_: ValueType, default: str | None, meaning: str, *refused: str
) -> Option:
    return Option(key, type_, meaning, default, use=Refused(*refused))


_DEFINE = "define one by Lake.create_external_table, or CREATE EXTERNAL TABLE"

# -- keys and layout -------------------------------------------------------------------------------

_LAYOUT = (
    Option("primary-key", NAMES, "The primary key, for SQL that has no other place for it; stored "
           "as the key, not as an option.", change=NEVER),
    Option("partition", NAMES, "The partition columns, likewise.", change=NEVER),
    Option("bucket", BUCKETS, "Buckets per partition, 1 when a table is made without it; -1, no "
           "buckets, when it has no primary key. More mean more parallel merging and more, smaller "
           "files; 200 MB to 1 GB of data per bucket is a good size. A change is for later writes "
           "into new or overwritten partitions. -1 with a primary key: as many as are needed for "
           "`dynamic-bucket.target-row-num` keys in each, told by an index. -2 with a primary key: "
           "each partition has a number of its own, see `postpone.default-bucket-num`."),
    Option("bucket-key", EXACT_COLUMNS, "Columns whose hash picks the bucket, of the primary key "
           "if there is one; left out, all of the key.", change=FIXED),
    Option("bucket-function.type", choice("default", "mod", "hive"),
           "How the bucket is computed of the bucket key.", "default", FIXED),
    Option("postpone.default-bucket-num", integer(1), "Buckets of a partition that has none yet, "
           "where `bucket` is -2.", "1"),
    _refused("postpone.batch-write-fixed-bucket", BOOLEAN, "true", "Whether writes put rows into "
             "buckets at once, where `bucket` is -2.",
             "rows would be hidden until a compaction", "leave it out"),
    Option("dynamic-bucket.target-row-num", integer(1, 2**63 - 1), "Keys, deleted ones too, that "
           "fill a bucket of a table with `bucket` = -1; further keys go into another one.",
           "2000000"),
    Option("dynamic-bucket.initial-buckets", integer(1, 1 << 15), "Buckets of a partition to begin "
           "with where `bucket` is -1; one for each task that writes, when left out.",
           change=FIXED),
    Option("dynamic-bucket.max-buckets", BUCKETS_MAX, "The most buckets of a partition where "
           "`bucket` is -1; when they are full, they share what comes. -1 for no limit.", "-1"),
    Option("dynamic-bucket.assigner-parallelism", integer(1), "Tasks of a Spark job that place the "
           "new keys of a partition where `bucket` is -1 and `dynamic-bucket.initial-buckets` is "
           "left out: each fills buckets of its own. One for each core, when left out."),
    Option("partition.default-name", TEXT, "The folder name of NULL in a partition column.",
           "__DEFAULT_PARTITION__", FIXED),
    Option("partition.legacy-name", BOOLEAN, "Whether dates in partition folders are written as "
           "numbers of days.", "true", FIXED),
    Option("data-file.prefix", FILE_NAME, "How names of data files begin.", "data-"),
    Option("data-file.path-directory", FOLDER, "A folder below the table for its data files.",
           change=FIXED),
    Option("primary-key.nullable", BOOLEAN, "Whether key columns may be NULL, which is then a "
           "value like any other: equal to itself.", "false", FIXED),
    Option("type", choice("table", "format-table", "materialized-table", "object-table",
                          "external-table"),
           "The type of the table: `external-table` for one whose rows others keep.", "table",
           NEVER, Refused("Keytide makes tables of its own files only", "leave it out"),
           {"external-table": Refused("it is for tables whose rows others keep", _DEFINE)}),
    Option("branch", TEXT, "The branch that is read and written where none is named; "
           "`t$branch_main` is the main one even then.", "main"),
    _refused("auto-create", BOOLEAN, "false", "Whether reading makes a missing table.",
             "a table is made by CREATE TABLE or create_table alone", "leave it out"),
    _refused("data-file.external-paths", TEXT, None, "Places outside of the table for its data "
             "files.", "Keytide writes below the table's own path",
             "make the table where its files should lie"),
    _refused("data-file.external-paths.strategy", choice("none", "specific-fs", "round-robin",
             "entropy-inject", "weight-robin"), "none", "How an external place is chosen.",
             "Keytide writes below the table's own path",
             "make the table where its files should lie"),
    _refused("row-tracking.enabled", BOOLEAN, "false", "Whether rows have ids of their own.",
             "writes give rows no ids", "leave it out"),
    _refused("data-evolution.enabled", BOOLEAN, "false", "Whether columns are stored apart.",
             "writes store whole rows", "leave it out"),
)  # fmt: skip

# -- which version wins ----------------------------------------------------------------------------

_ORDER = (
    Option("merge-engine", ENGINE, "What the versions of a key become; the end of this page "
           "lists the engines.", "deduplicate", FIXED),
    Option("sequence.field", COLUMNS, "Columns that order the versions of a key; NULL is lowest. "
           "Without it arrival decides. With `upsert.mode` several are those of producers: a row "
           "has a value in one of them, in which it is compared.", change=FIXED),
    Option("sequence.field.sort-order", choice("ascending", "descending"),
           "Whether the greatest or the least sequence wins.", "ascending", FIXED,
           used_with="sequence.field"),
    Option("sequence.auto-padding", PADDINGS, "How sequence numbers are made of the sequence "
           "field, for releases of other engines that know one number only.", change=FIXED),
    Option("sequence.snapshot-ordering", BOOLEAN, "Whether versions are ordered by their commit.",
           "false", FIXED, ForOthers("without a sequence field the later commit wins in any case")),
    Option("watermark.key", COLUMNS, "Columns that say how fresh a row is, compared in turn; "
           "stored as the sequence field too, so that every engine orders alike.", change=FIXED),
    Option("tombstone.key", COLUMNS, "The one column that marks a row as a delete; needs a "
           "watermark key.", change=FIXED),
    Option("tombstone.string-key-value", TEXT, "The text in the tombstone column that deletes; "
           "left out, any text does.", change=FIXED, used_with="tombstone.key"),
    Option("upsert.dml-watermark", choice("copy", "statement-time", "explicit"), "The watermark of "
           "what UPDATE, DELETE and MERGE append: that of the old row; or the time at which the "
           "statement began, where that is later; or what the statement sets, which it must.",
           "copy", used_with="watermark.key"),
    Option("upsert.mode", choice("none", "full", "partial"), "`full`: the table keeps an index of "
           "its keys, and a write marks the rows that it replaces as dead, so that nothing is "
           "merged when it is read. `partial`: besides, a row is merged with the current one of "
           "its key when it is written, by `fields.<column>.aggregate-function`. `none`: versions "
           "of a key are merged on reading. `Table.convert` makes `full` of `none`, and back.",
           "none", NEVER),
    Option("upsert.primary-key", EXACT_COLUMNS, "The key of a table with `upsert.mode`, which is "
           "one without a key to other engines; written down when it is made.", change=NEVER),
    Option("upsert.hash-function", choice("none", "uuid", "xxh128", "xxhash", "murmur3", "md5"),
           "The hash function of the index of keys; `uuid` takes texts that spell the same UUID "
           "for the same key.", "none", FIXED, used_with="upsert.mode"),
    Option("upsert.delete-record-column", COLUMN, "The column that marks a row as a delete: "
           "BOOLEAN `true`, a text `true` in any letter case or `1`, or a number whose whole "
           "part is 1; for tables with `upsert.mode`, which need no watermark key for it.",
           change=FIXED, used_with="upsert.mode"),
    Option("upsert.row-errors", choice("refuse", "count"), "What becomes of a row that the table "
           "cannot take, such as one with NULL in the key or without a value to be compared by: "
           "`refuse`, and the write with it; or `count`, which leaves it out and counts it in "
           "`WriteResult.errors`, as a consumer of a stream does.", "refuse",
           used_with="upsert.mode"),
    Option("upsert.drop-out-of-order-record", BOOLEAN, "Whether a row that comes after a fresher "
           "one of its key is not stored; else it is, and nobody is shown it.", "false", FIXED,
           used_with="upsert.mode"),
    Option("upsert.out-of-order-record-column", COLUMN, "The BOOLEAN column in which a write says "
           "whether a row came after a fresher one of its key, whatever the row brings there.",
           change=FIXED, used_with="upsert.mode"),
    Option("upsert.metadata-ttl", AGE, "How far the sequence field of a row may lie behind the "
           "freshest one that came to its bucket before: a row that lies further behind is late, "
           "whatever its key. A duration where the sequence field is a time, else a whole number.",
           used_with="upsert.mode"),
    Option("upsert.deleted-keys-ttl", AGE, "The same, and how long deletes are kept, in the time "
           "of the sequence field: compactions forget those that lie further behind.",
           change=Change.SHORTER, used_with="upsert.mode"),
    Option("upsert.compaction.invalid-records-threshold-percent", integer(0, 100), "The part of "
           "the rows of a file that say nothing of their keys any more, in percent, from which a "
           "compaction takes it up, however large it is; 0 where only the number is set.",
           used_with="upsert.mode"),
    Option("upsert.compaction.invalid-records-threshold-count", integer(1), "The number of such "
           "rows, which it has to have besides; 1 where only the part is set.",
           used_with="upsert.mode"),
    Option("upsert.compaction.buffer-time-period", DURATION, "How old a file has to be for a "
           "compaction to take it up; one in full takes all.", used_with="upsert.mode"),
    Option("rowkind.field", COLUMN, "The column that holds the kind of a row: `+I`, `-U`, `+U`, "
           "`-D`.", change=FIXED),
    Option("ignore-delete", BOOLEAN, "Whether `-D` and `-U` rows are dropped, stored ones too.",
           "false", FIXED, aliases=(
               "first-row.ignore-delete", "deduplicate.ignore-delete",
               "partial-update.ignore-delete")),
    Option("ignore-update-before", BOOLEAN, "Whether writes drop `-U` rows.", "false", ONE_WAY),
    Option("partial-update.remove-record-on-delete", BOOLEAN, "Whether a `-D` removes the row.",
           "false", FIXED),
    Option("partial-update.remove-record-on-sequence-group", COLUMNS, "Sequence fields of groups "
           "whose `-D` removes the row.", change=FIXED),
    Option("aggregation.remove-record-on-delete", BOOLEAN, "Whether a `-D` removes the row.",
           "false", FIXED),
)  # fmt: skip

# -- tables that others keep -----------------------------------------------------------------------


def _external(key: str, type_: ValueType, default: str | None, meaning: str) -> Option:
    use = Refused("it is for tables whose rows others keep", _DEFINE)
    return Option(key, type_, meaning, default, NEVER, use)


_EXTERNAL = (
    _external("external.format", TEXT, None, "What lies at the location: `parquet`, `csv` or "
              "`json` files in a folder, or a table of a format or a database."),
    _external("external.location", TEXT, None, "Where the rows lie: a path or an address, without "
              "secrets."),
    _external("external.schema-on-read", BOOLEAN, "false", "Whether the columns are those that the "
              "rows had when the table was defined, or refreshed last."),
    _external("external.option.<name>", TEXT, None, "An option of the format, such as `delimiter` "
              "of `csv`."),
    _external("upsert.on-tie", choice("last-write", "tombstone-wins", "error"), None, "Which of "
              "the versions of a key with equal watermarks is the row: the one that was committed "
              "last; a delete, if one of them is, else the one with the larger values; or none, "
              "and the read fails. Left out, `last-write` where the format tells the order of "
              "commits, `tombstone-wins` where it does not."),
)  # fmt: skip

# -- columns ---------------------------------------------------------------------------------------

_COLUMNS = (
    Option("fields.<column>.aggregate-function", TEXT, "The function that folds the column.",
           change=FIXED),
    Option("fields.default-aggregate-function", TEXT, "The function of columns that name none.",
           change=FIXED),
    Option("fields.<column>.post-merge-expression", TEXT, "An expression of SQL over the columns "
           "of the row, which gives the column its value whenever a row is merged with an earlier "
           "one of its key; with `upsert.mode` = `partial`.", change=FIXED,
           used_with="upsert.mode"),
    Option("fields.<columns>.sequence-group", COLUMNS, "Columns that follow the order of these, "
           "each group on its own.", change=FIXED),
    Option("fields.<column>.ignore-retract", BOOLEAN, "Whether the function ignores `-D` and "
           "`-U` rows.", "false", FIXED),
    Option("fields.<column>.count-values", BOOLEAN, "Whether writes store 1 in place of a value; "
           "set with the function `count`.", "false"),
    Option("fields.<column>.distinct", BOOLEAN, "Whether `listagg` and `collect` keep each value "
           "once.", "false", FIXED, functions=("listagg", "collect")),
    Option("fields.<column>.list-agg-delimiter", TEXT, "What `listagg` puts between values.", ",",
           FIXED, functions=("listagg",)),
    Option("fields.<column>.nested-key", NAMES, "Members of a nested row that are its key, for "
           "`nested_update` and `nested_partial_update`.", change=FIXED, functions=_NESTED),
    Option("fields.<column>.nested-sequence-field", NAMES, "Members that order nested rows of a "
           "key.", change=FIXED, functions=("nested_update",)),
    Option("fields.<column>.nested-key-null-strategy", choice("merge", "ignore", "error"),
           "What becomes of nested rows with NULL in their key.", "merge", FIXED,
           functions=_NESTED),
    Option("fields.<column>.count-limit", integer(0), "The most nested rows that `nested_update` "
           "keeps.", change=FIXED, functions=("nested_update",)),
    Option("fields.<column>.merge-map-with-keytime.ts-field", TEXT, "The member that orders the "
           "values of a map's key, for `merge_map_with_keytime`.", change=FIXED,
           functions=("merge_map_with_keytime",)),
    Option("fields.<column>.ts-field", TEXT, "The same, shorter.", change=FIXED,
           functions=("merge_map_with_keytime",)),
    Option("fields.<columns>.default-value", TEXT, "What readers show instead of NULL; stored "
           "rows keep their NULL."),
    Option("fields.<column>.stats-mode", STATS_MODE, "Which statistics are kept of the column.",
           use=ForOthers("'metadata.stats-mode' says it for all columns")),
    Option("user.<name>", TEXT, "Properties of your own, which nobody reads but you."),
)  # fmt: skip

# -- writing ---------------------------------------------------------------------------------------

_WRITING = (
    Option("constraint.<name>", TEXT, "A condition that no row may fail which is written: "
           "`CONSTRAINT name CHECK (...)`."),
    Option("generated.<column>", TEXT, "An expression of SQL over other columns "
           "of the row, which gives the column its value when a row is written: `GENERATED ALWAYS "
           "AS (...)`. Set when a table is made, and may be taken away."),
    Option("file.format", choice("parquet", "orc", "avro"), "The format of new data files; "
           "files of all of them may lie in one table. `avro` is written row by row, which takes "
           "many times as long, and read whole.", "parquet"),
    Option("file.format.per.level", LEVELS, "Formats of new files of some levels, as in "
           "`0:avro,5:parquet`; other levels have `file.format`. A compaction writes a file anew "
           "whose level asks for another one. For tables whose versions are merged.", ""),
    Option("file.compression", choice("zstd", "snappy", "gzip", "lz4", "none"), "The codec of data "
           "files. Left out it is `lz4` for small files at level 0, for a frequent upsert is "
           "written faster then, and is written again by the next compaction anyway, and with "
           "`changelog-producer` = `lookup` for those below the highest level; in others "
           "it is `zstd`, and of columns of short values `lz4` or none where that takes little "
           "more space, for readers unpack those far faster. Where it would spare next to "
           "nothing, a column has none."),
    Option("file.compression.zstd-level", integer(1, 22), "How hard `zstd` tries.", "1"),
    Option("target-file-size", size(1), "A run is cut into files of about this size. Smaller "
           "files prune better and list longer.", "128 mb"),
    Option("data-file.thin-mode", BOOLEAN, "Leave the `_KEY_` columns out: smaller, but Paimon "
           "releases before 1.0 cannot read it.", "false"),
    Option("metadata.stats-mode", STATS_MODE, "Which statistics of columns are kept.",
           "truncate(16)"),
    Option("dynamic-partition-overwrite", BOOLEAN, "Whether an overwrite without a partition "
           "replaces only the partitions that its rows touch; `false`: the whole table, as mode "
           "`overwrite` of a DataFrame's writer does in any case.", "true"),
    Option("write.count-out-of-order", BOOLEAN, "Whether a write counts the rows that are older "
           "than what had arrived before them, which costs a lookup of their keys.", "false"),
    Option("write.distribution", choice("auto", "hash", "none"), "How the rows of a DataFrame "
           "come to the tasks that write them. `hash`: a shuffle brings each bucket into one task, "
           "which writes one sorted run. `none`: each task writes the rows of its partition, a run "
           "for each bucket; a load costs a third to a half less, and readers merge the runs until "
           "they are compacted. `auto` is `none` where more than 10 MB are written into a table "
           "without partitions that has no rows yet, or over all of them, and no bucket gets as "
           "many runs as `num-sorted-run.compaction-trigger`; otherwise `hash`. A DataFrame of one "
           "partition is not shuffled in any case, nor is what a data source or a stream writes; "
           "MERGE and ingestions bring the rows of a key together in any case.", "auto"),
    Option("write-buffer-size", size(1), "Rows that a distributed write gathers into one sorted "
           "run. Fewer and larger runs are merged faster; a task needs about four times as much "
           "memory.", "256 mb"),
    Option("spark.driver-work.max-size", SIZE, "Up to here what a write, a change of rows or a "
           "compaction on a Spark session reads, of files and of a DataFrame whose size Spark "
           "knows, is worked on by threads of the driver, without tasks in Python; rows that pass "
           "through Spark count four times. 0: executors do all of it. The setting "
           "`spark.keytide.driver-work.max-size` of a session takes its place.", "128 mb"),
    Option("commit.max-retries", integer(0), "Races for the same snapshot id that one commit may "
           "lose. An append never has to be redone, only rebased, so a high figure costs nothing "
           "but patience.", "100"),
    Option("commit.min-retry-wait", DURATION, "The shortest wait after a lost race.", "2 ms"),
    Option("commit.max-retry-wait", DURATION, "The longest wait after a lost race.", "500 ms"),
    Option("manifest.merge-min-count", integer(2), "Manifests that are merged into one when there "
           "are as many.", "30"),
    Option("manifest.target-file-size", size(1), "The size of a manifest: smaller ones that reach "
           "it together are merged, larger ones are left as they are.", "8 mb"),
    Option("manifest.full-compaction-threshold-size", SIZE, "The size of all manifests that are "
           "small or delete files, from which on they are written anew without what was deleted.",
           "16 mb"),
    Option("write-only", BOOLEAN, "Whether writes leave compaction to others: to `Table.compact`, "
           "to `CALL sys.compact` or to another engine.", "false"),
)  # fmt: skip

# -- reading ---------------------------------------------------------------------------------------

_READ_GIVES = "a read of Keytide takes its snapshot from the read itself, never from the table"
_READ_INSTEAD = (
    "give scan(snapshot_id=...), scan(tag=...) or scan(as_of=...), and in SQL VERSION AS OF, "
    "TIMESTAMP AS OF or /*+ OPTIONS(...) */"
)


def _read(key: str, type_: ValueType, default: str | None, meaning: str) -> Option:
    return _refused(key, type_, default, meaning, _READ_GIVES, _READ_INSTEAD)


_ROWS_OF_READS = "a read says which rows it shows, never the table"
_ROWS_INSTEAD = (
    "give scan(skip_upsert=True) or scan(skip_upsert_delete=True), and in SQL /*+ OPTIONS(...) */"
)

_ONE_BRANCH = "a read of Keytide is of one branch"
_OF_BRANCHES = "read t$branch_x beside t, by UNION ALL with a condition on partitions"

_FILTERS = "file-index.bloom-filter.columns"
_OTHER_INDEX = "writes make no indexes of this type"

_READING = (
    Option("read.memory", size(1), "What a merging read may hold at a time, over all its threads; "
           "in DELETE, UPDATE and MERGE what this process computes by may hold as much again. More "
           "is a little faster.", "1 gb"),
    _read("scan.snapshot-id", integer(1, 2**63 - 1), None, "The snapshot to read."),
    _read("scan.tag-name", TEXT, None, "The tag to read."),
    _read("scan.version", TEXT, None, "The snapshot or tag to read."),
    _read("scan.timestamp", TEXT, None, "The time to read the table as of."),
    _read("scan.timestamp-millis", integer(0, 2**63 - 1), None, "The same, in milliseconds."),
    _read("scan.watermark", integer(-(2**63), 2**63 - 1), None,
          "The stream watermark to read the table as of."),
    _read("scan.creation-time-millis", integer(0, 2**63 - 1), None,
          "Only snapshots made since."),
    _read("scan.file-creation-time-millis", integer(0, 2**63 - 1), None,
          "Only files made since."),
    _read("scan.mode", choice("default", "latest-full", "full", "latest", "latest-delta",
                              "compacted-full", "from-timestamp", "from-creation-timestamp",
                              "from-file-creation-time", "from-snapshot", "from-snapshot-full",
                              "incremental"), "default", "Where reads begin."),
    _refused("scan.skip-upsert", BOOLEAN, "false", "Whether a read shows every stored row of a "
             "table with an index of keys.", _ROWS_OF_READS, _ROWS_INSTEAD),
    _refused("scan.skip-upsert-delete", BOOLEAN, "false", "Whether a read of such a table shows "
             "the last row of each key, that of a delete too.", _ROWS_OF_READS, _ROWS_INSTEAD),
    _read("incremental-between", TEXT, None, "Two snapshots or tags to read what changed between."),
    _read("incremental-between-timestamp", TEXT, None, "The same, by times."),
    _read("incremental-between-scan-mode", choice("auto", "delta", "changelog", "diff"), "auto",
          "How the changes are found."),
    _refused("scan.fallback-branch", TEXT, None, "The branch for partitions that are missing.",
             _ONE_BRANCH, _OF_BRANCHES),
    _refused("scan.primary-branch", TEXT, None, "The branch that comes first.",
             _ONE_BRANCH, _OF_BRANCHES),
    _kept("scan.manifest.parallelism", integer(1), None, "Threads that read manifests.",
          "reads choose by themselves"),
    _kept("scan.max-splits-per-task", integer(1), "10", "Splits of a Flink task.",
          "reads choose by themselves"),
    _kept("scan.plan-sort-partition", BOOLEAN, "false", "Whether splits are sorted by partition.",
          "reads choose by themselves"),
    _kept("source.split.target-size", SIZE, "128 mb", "The size of a split.",
          "reads split by 'read.memory'"),
    _kept("source.split.open-file-cost", SIZE, "4 mb", "What opening a file counts as.",
          "reads split by 'read.memory'"),
    _kept("read.batch-size", integer(1), "1024", "Rows of a batch.",
          "batches follow 'read.memory'"),
    _kept("file-reader-async-threshold", SIZE, "10 mb", "Larger files are read ahead.",
          "reads choose by themselves"),
    Option("lookup.cache-max-memory-size", SIZE, "What a process keeps for later reads of the same "
           "files: footers, file indexes, keys and rows for look-ups, those used last. Every read "
           "holds what is kept of all tables to its own table's bound.", "256 mb"),
    Option("file-index.read.enabled", BOOLEAN, "Whether reads use file indexes.", "true"),
    Option("file-index.in-manifest-threshold", SIZE, "File indexes up to this size are "
           "written into manifests, larger ones into files.", "500 b"),
    Option("file-index.bloom-filter.columns", COLUMNS, "Columns of which new data files get "
           "a bloom filter: `get` and conditions with `=` and IN then pass over files without the "
           "value."),
    Option("file-index.bloom-filter.<column>.fpp", SHARE, "How many values that a file does not "
           "hold its filter takes for its own.", "0.1", used_with=_FILTERS),
    Option("file-index.bloom-filter.<column>.items", integer(1), "The different values of the "
           "column in one file for which its filter has room. Left out, it has room for as many as "
           "the file has rows, and it never has more.", used_with=_FILTERS),
    Option("file-index.<type>.columns", COLUMNS, "Columns with an index of that type.",
           use=ForOthers(_OTHER_INDEX)),
    Option("file-index.<type>.<columns>.<setting>", TEXT, "A setting of such an index.",
           use=ForOthers(_OTHER_INDEX)),
    Option("record-level.expire-time", DURATION, "The age from which on a row is not shown any "
           "more, in tables with a primary key. Compactions drop such rows where the row of a key "
           "is one of its versions; where it is put together of many they stay.",
           used_with="record-level.time-field"),
    Option("record-level.time-field", COLUMN, "The column that holds the time from which the age "
           "of a row counts: INT in seconds, BIGINT in seconds or, from 10^12 on, milliseconds, or "
           "TIMESTAMP; NULL never expires."),
)  # fmt: skip

# -- changelogs and streams ------------------------------------------------------------------------

_NO_STREAM = "who follows a table says it: follow(...), or options of readStream"

_CHANGES = (
    Option("changelog-producer", choice("none", "input", "lookup", "full-compaction"),
           "Which changelog files are stored. `input`: every write stores its rows once more, as "
           "they came. `full-compaction`: a full compaction stores what became of the keys that "
           "were written since the last one. `lookup`: each write is followed by a compaction that "
           "does so for the keys that it wrote. `changes(mode='diff')` and `follow` need none.",
           "none"),
    Option("changelog-producer.row-deduplicate", BOOLEAN, "Whether changelogs that compactions "
           "make leave out rows that are as they were before; else these are a `-U` and a `+U`.",
           "false"),
    Option("changelog-producer.row-deduplicate-ignore-fields", COLUMNS, "Columns that do not count "
           "there. A `-U` may then show a value of theirs that no `+U` had.",
           used_with="changelog-producer.row-deduplicate"),
    _kept("changelog-producer.compaction-interval", DURATION, "0 ms",
          "The time between two full compactions.", "use 'full-compaction.delta-commits'"),
    Option("full-compaction.delta-commits", integer(1), "Commits from one full compaction to the "
           "next. Left out, each write to a table whose changelog full compactions make is "
           "followed by one, which writes the buckets that it touched anew."),
    Option("changelog-file.compression", choice("zstd", "snappy", "gzip", "lz4", "none"),
           "The codec of changelog files; left out, that of data files, and `lz4` for small ones "
           "of `changelog-producer` = `lookup`, for each write waits for them."),
    Option("changelog-file.format", choice("parquet", "orc", "avro"),
           "The format of changelog files; left out, that of data files."),
    Option("changelog-file.prefix", FILE_NAME, "How names of changelog files begin.", "changelog-"),
    Option("changelog-file.stats-mode", STATS_MODE,
           "Which statistics are kept of changelog files; left out, those of data files."),
    Option("changelog.num-retained.max", integer(1), "The most commits whose changelog is kept, "
           "counted back from the newest; left out, as many as snapshots."),
    Option("changelog.num-retained.min", integer(1), "The fewest, however old; left out, as many "
           "as snapshots."),
    Option("changelog.time-retained", DURATION, "How long changelogs are kept; left out, as long "
           "as snapshots. Where it is longer, or one of the numbers larger, a snapshot that "
           "expires leaves its changelog behind: what `changelog-producer` stored or, with `none`, "
           "the rows as they were written, and the files with them."),
    _kept("delete.force-produce-changelog", BOOLEAN, "false",
          "Whether a delete of partitions writes a changelog.",
          "a delete of rows always does, a truncate never"),
    _kept("streaming-read-overwrite", BOOLEAN, "false",
          "Whether streaming reads tell of overwrites.", "all modes do but 'changelog'"),
    _kept("streaming-read-mode", choice("log", "file"), None, "What streams are read from.",
          "they are read from files"),
    _kept("consumer-id", TEXT, None, "The name under which a stream keeps its place.", _NO_STREAM),
    Option("consumer.expiration-time", DURATION, "How long after it was kept last a consumer's "
           "place is forgotten, when snapshots expire; never when left out. Until then it keeps "
           "snapshots from expiring, whether its reader comes again or not."),
    _kept("consumer.ignore-progress", BOOLEAN, "false", "Whether the kept place is ignored.",
          _NO_STREAM),
    _kept("consumer.mode", choice("exactly-once", "at-least-once"), "exactly-once",
          "How exactly a place is kept.", "what was told in part is told again in whole"),
    Option("consumer.changelog-only", BOOLEAN, "Whether a place keeps changelogs from expiring, "
           "and no snapshots: for readers of `delta` and `changelog`.", "false"),
    _kept("snapshot.watermark-idle-timeout", DURATION, None,
          "When an idle source is no longer waited for.", _NO_STREAM),
    _kept("sink.key-only-deletes.enabled", BOOLEAN, "false",
          "Whether deletes may bring their key only.", "a delete needs no more than its key"),
)  # fmt: skip

# -- compaction ------------------------------------------------------------------------------------

_NO_COMPACTION = "compaction goes by the other options"
_NO_SORTING = "compactions that put rows in order learn how these lie from a sample of their own"


def _compacting(key: str, type_: ValueType, default: str | None, meaning: str) -> Option:
    return _kept(key, type_, default, meaning, _NO_COMPACTION)


_COMPACTION = (
    Option("num-sorted-run.compaction-trigger", integer(1), "Sorted runs of a bucket, each file of "
           "level 0 and each level above it, at which a write compacts the bucket after its "
           "commit. More runs make writes cheaper and reads dearer.", "5"),
    Option("num-sorted-run.stop-trigger", integer(1), "More sorted runs of a bucket than these, "
           "and a write goes on compacting until there are fewer, or waits until a compaction "
           "behind it has ended; left out, twelve times as many as start a compaction, and three "
           "more where nothing is compacted behind writers."),
    Option("compaction.background", BOOLEAN, "Whether larger compactions run behind the writer: "
           "a write returns once its rows are durable, and a thread of its process compacts while "
           "the next writes go on, one compaction of a table at a time. `Table.close`, the end of "
           "a `with` block and that of the process wait for it. Rows that no reader would be shown "
           "before are compacted in the write nevertheless.", "true"),
    Option("compaction.background.min-size", SIZE, "Compactions of files of at least this size "
           "run behind the writer, smaller ones in the write.", "256 kb"),
    Option("compaction.background.min-runs", integer(1), "Sorted runs of a bucket at which a "
           "compaction behind the writer begins, for few large ones leave the writer more of the "
           "machine than many small ones; left out, four times as many as start a compaction. "
           "What is due before that waits until no write has come for a fifth of a second, or for "
           "`Table.close` or the end of the process."),
    Option("num-levels", integer(2), "Levels of a bucket; `$ro` shows the highest. Left out, one "
           "more than the runs that start a compaction."),
    _compacting("compaction.force-rewrite-all-files", BOOLEAN, "false",
                "Whether a full compaction rewrites every file."),
    _compacting("compaction.force-up-level-0", BOOLEAN, "false",
                "Whether every compaction takes all of level 0."),
    Option("compaction.incremental-size-threshold", SIZE, "Data below the highest level that start "
           "a full compaction of a bucket."),
    Option("compaction.max-size-amplification-percent", integer(0), "Newer data, in percent of the "
           "oldest run, that start a full compaction of a bucket.", "200"),
    Option("compaction.optimization-interval", DURATION, "The time after which a write compacts a "
           "bucket fully, however few runs it has."),
    Option("compaction.size-ratio", integer(0), "By how many percent the next older run may be "
           "larger than those picked, to be compacted with them.", "1"),
    Option("compaction.total-size-threshold", SIZE, "Smaller buckets are compacted fully, however "
           "few runs they have."),
    Option("tombstone.retention", DURATION_OR_FOREVER, "How long a delete is kept where a late "
           "older row could bring the key back, counted from the first compaction that meets it; "
           "then a full compaction forgets it.", "forever"),
    Option("version.retention", DURATION_OR_FOREVER, "How long versions of a key are kept apart, "
           "where a late row could belong between them and their order matters, counted from the "
           "first compaction that meets them; then a compaction merges them.", "forever"),
    _compacting("compaction.offpeak.start.hour", integer(-1, 23), "-1",
                "When compaction may take more."),
    _compacting("compaction.offpeak.end.hour", integer(-1, 23), "-1", "Until when."),
    _compacting("compaction.offpeak-ratio", integer(0), "0", "The size ratio then."),
    _compacting("commit.force-compact", BOOLEAN, "false", "Whether commits wait for compaction."),
    Option("force-lookup", BOOLEAN, "Whether compactions look older values up, so that those of "
           "some runs do where all of them would have to be taken.", "false", FIXED),
    Option("lookup-compact", choice("radical", "gentle"), "With `changelog-producer = lookup`: "
           "whether each write is compacted and told of, or so many runs of level 0 at once as "
           "`lookup-compact.max-interval` says.", "radical"),
    Option("lookup-compact.max-interval", integer(1), "The runs of level 0 of a bucket that are "
           "compacted together at the latest, twice `num-sorted-run.compaction-trigger` when "
           "left out.", used_with="lookup-compact"),
    Option("lookup-wait", BOOLEAN, "With `changelog-producer = lookup`: whether a write does that "
           "before it returns, or leaves it to `Table.compact` and to compactions that its runs "
           "make due.", "true"),
    Option("lookup.cache-file-retention", DURATION, "How long a lookup file stays after its last "
           "use: a data file in which older versions are looked up again, or that a process writes "
           "to look them up in, laid out for that in the folder of temporary files of the process "
           "that writes or tells of changes.", "1 h"),
    Option("lookup.cache-max-disk-size", SIZE, "The size of all lookup files of a process. Left "
           "out: half of what the disk has left, for each of them."),
    _kept("sort-compaction.local-sample.magnification", integer(1), "1000",
          "The sample of a sorting compaction.", _NO_SORTING),
    _kept("sort-compaction.range-strategy", choice("quantity", "size"), "quantity",
          "How it cuts.", _NO_SORTING),
    _kept("zorder.var-length-contribution", integer(1), "8", "Bytes of texts that count.",
          _NO_SORTING),
    Option("deletion-vectors.enabled", BOOLEAN, "Whether each write is followed by a compaction "
           "that marks the versions it outlives as dead, so that readers merge nothing. Rows are "
           "shown once they are compacted. Without a primary key: whether DELETE, UPDATE and MERGE "
           "mark rows as dead, and do not write the files that have them again.", "false", FIXED),
    _refused("deletion-vectors.modifiable", BOOLEAN, "false", "Whether other engines may change "
             "`deletion-vectors.enabled` later.",
             "rows that were written without vectors have older versions beside them, which "
             "readers would show too", "leave it out"),
    Option("deletion-vectors.bitmap64", BOOLEAN, "Whether vectors have 64 bits, which not every "
           "engine reads.", "false", used_with="deletion-vectors.enabled"),
    Option("deletion-vectors.merge-on-read", BOOLEAN, "Whether readers merge rows that are not "
           "compacted yet, so that they see them.", "false", used_with="deletion-vectors.enabled"),
    _kept("deletion-vector.index-file.target-size", SIZE, "2 mb", "The size of vector files.",
          "the vectors of a bucket are one file, as the format has it"),
    Option("pk-clustering-override", BOOLEAN, "Whether files are sorted by `clustering.columns`.",
           "false", FIXED, Refused("files that are not sorted by key cannot be merged",
                                   "leave it out")),
    _kept("clustering.columns", COLUMNS, None, "Columns that files are sorted by.",
          "files are sorted by the primary key"),
)  # fmt: skip

# -- snapshots, tags, partitions -------------------------------------------------------------------

_NO_CLASSES = "no classes of Java are called"
_NO_MARKS = "writes mark no partitions as done"

_HISTORY = (
    Option("snapshot.num-retained.max", integer(1), "The most snapshots kept: older ones expire "
           "however young they are. At least `snapshot.num-retained.min`; no limit when left out."),
    Option("snapshot.num-retained.min", integer(1), "The fewest snapshots kept: the newest ones "
           "stay however old they are.", "10"),
    Option("snapshot.time-retained", DURATION, "How long snapshots are kept beyond the fewest: "
           "after each commit older ones expire, unless the table is `write-only`. A longer time "
           "lets slow readers, streams and writers that repeat themselves find what they began "
           "with, and costs the room of what was replaced meanwhile.", "1 h"),
    Option("snapshot.expire.limit", integer(1), "Snapshots that one commit expires at most.", "50"),
    Option("snapshot.expire.execution-mode", choice("sync", "async"), "Whether a commit waits for "
           "snapshots to expire, or leaves it to a thread of its process.", "sync"),
    _kept("snapshot.clean-empty-directories", BOOLEAN, "false", "Whether folders go too.",
          "folders without files stay"),
    _kept("snapshot.ignore-empty-commit", BOOLEAN, None, "Whether empty commits make no snapshot.",
          "a write of no rows makes no snapshot"),
    Option("tag.automatic-creation", choice("none", "process-time", "watermark", "batch"),
           "When writes make tags by themselves: `process-time`, one for each period that has "
           "ended, of the first snapshot since; `watermark`, the same by the stream watermark that "
           "other engines store; `batch`, one for each day, of the newest snapshot after each "
           "write that is no part of a stream.", "none"),
    Option("tag.automatic-completion", BOOLEAN, "Whether periods in which nothing was committed "
           "get tags too, one with each later snapshot.", "false"),
    Option("tag.batch.customized-name", TEXT, "The name of the tag of `batch`, which is "
           "`batch-write-` with the day otherwise."),
    _kept("tag.callbacks", TEXT, "", "Classes that are told of tags.", _NO_CLASSES),
    Option("tag.callback.<class>.param", TEXT, "A parameter of one.", use=ForOthers(_NO_CLASSES)),
    _kept("tag.create-success-file", BOOLEAN, "false", "Whether a tag has a file that says so.",
          "the file of a tag is there when the tag is"),
    Option("tag.creation-delay", DURATION, "How long after the end of a period its tag is made, "
           "less than a period: what comes late is in it.", "0 ms"),
    Option("tag.creation-period", choice("daily", "hourly", "two-hours"), "The periods of tags, by "
           "the clock of the machine that writes.", "daily"),
    Option("tag.creation-period-duration", DURATION, "Periods of another length, in whole minutes; "
           "`tag.creation-period` says nothing then."),
    Option("tag.default-time-retained", DURATION, "How long a tag is to stay whose maker does not "
           "say it; for ever, when left out."),
    Option("tag.num-retained-max", integer(1), "The most tags of periods, or of days, that writes "
           "keep; the oldest go. Tags that users make are not counted."),
    Option("tag.period-formatter", choice("with_dashes", "without_dashes",
                                          "without_dashes_and_spaces"),
           "How tags of days and hours are named.", "with_dashes"),
    Option("tag.time-expire-enabled", BOOLEAN, "Whether writes delete tags whose time is over; "
           "they look once a minute at most.", "true"),
    _kept("metastore.partitioned-table", BOOLEAN, "false", "Whether partitions are registered.",
          "a lake is a folder, without a metastore"),
    _kept("metastore.tag-to-partition", TEXT, None, "A partition column made of tags.",
          "a lake is a folder, without a metastore"),
    _kept("metadata.iceberg.storage", choice("disabled", "table-location", "hadoop-catalog",
                                             "hive-catalog", "rest-catalog"), "disabled",
          "Whether Iceberg's metadata is written.", "'publish' = 'iceberg' writes it"),
    Option("partition.expiration-time", DURATION, "The age at which partitions are dropped, after "
           "the first commit of a process and then every `partition.expiration-check-interval`; "
           "never when left out."),
    Option("partition.expiration-check-interval", DURATION, "How often a process that commits "
           "looks for old partitions.", "1 h", used_with="partition.expiration-time"),
    Option("partition.expiration-max-num", integer(1), "Partitions that are dropped at once, the "
           "oldest first.", "100", used_with="partition.expiration-time"),
    Option("partition.expiration-strategy", choice("values-time", "update-time"), "Whether the age "
           "of a partition is told by its values, or counts from the last write to it.",
           "values-time", used_with="partition.expiration-time"),
    Option("partition.timestamp-formatter", TEXT, "How the text of a partition's time is read, in "
           "Java's letters such as `yyyyMMdd`; left out, `2026-01-31` or `2026-01-31 12:00:00`. A "
           "partition whose values tell no time stays.", used_with="partition.expiration-time"),
    Option("partition.timestamp-pattern", TEXT, "The text of a partition's time, made of its "
           "values: `$dt $hour:00:00`; left out, the first value.",
           used_with="partition.expiration-time"),
    _kept("partition.end-input-to-done", BOOLEAN, "false", "Whether the end marks them done.",
          _NO_MARKS),
    _kept("partition.mark-done-action", TEXT, "success-file", "How they are marked.", _NO_MARKS),
    _kept("partition.idle-time-to-report-statistic", DURATION, "1 h",
          "When statistics of an idle partition are reported.", _NO_MARKS),
)  # fmt: skip

# -- publishing ------------------------------------------------------------------------------------

_PUBLISHING = (
    Option("publish", FORMS, "What readers of other formats find in the table's folder, over the "
           "same data files: after each commit, and by `Table.publish`, `delta` writes the log of "
           "Delta Lake and `iceberg` the metadata of Apache Iceberg. A snapshot is published when "
           "nothing of it has to be merged; until there is one, the last that was stays. Without "
           "it nothing more is published, and what was published last stays."),
    Option("publish.iceberg.format-version", ICEBERG_VERSION, "The version of Iceberg's format in "
           "which `iceberg` is published. With `3` rows that are dead are told by deletion "
           "vectors, and rows have ids. The next publication goes by a change: from `2` to `3` it "
           "carries the Iceberg table on, from `3` to `2` it begins another one.", "2",
           used_with="publish"),
)  # fmt: skip

# -- writers of other engines ----------------------------------------------------------------------

_SORTS = "writes sort what they are given"
_METADATA = "writes choose by themselves"
_LOOKED_UP = "each write looks its keys up, and none is forgotten"

_WRITERS = (
    _kept("async-file-write", BOOLEAN, "true", "Whether files are written beside.", _METADATA),
    _kept("bucket-append-ordered", BOOLEAN, "true", "Whether appended rows stay in order.",
          "rows are read in no promised order"),
    _kept("cache-page-size", SIZE, "64 kb", "Pages of the lookup cache.", _METADATA),
    _kept("page-size", SIZE, "64 kb", "Pages of the write buffer.", _METADATA),
    _kept("commit.force-create-snapshot", BOOLEAN, "false", "Whether empty commits count.",
          "a write of no rows makes no snapshot"),
    _kept("commit.timeout", DURATION, None, "How long a commit is tried.",
          "'commit.max-retries' says how often"),
    _kept("commit.user-prefix", TEXT, None, "How names of commit users begin.",
          "the writer names the user"),
    _kept("cross-partition-upsert.bootstrap-parallelism", integer(1), "10",
          "Tasks that read the keys.", _LOOKED_UP),
    _kept("cross-partition-upsert.index-ttl", DURATION, None, "When keys are forgotten.",
          _LOOKED_UP),
    _kept("file.block-size", SIZE, None, "The size of a row group.", _METADATA),
    _kept("file.compression.per.level", LEVELS, "", "Codecs by level.",
          "'file.compression' says it for all levels"),
    _kept("file.suffix.include.compression", BOOLEAN, "false", "Whether names tell the codec.",
          "names of files do not tell it"),
    Option("index-file-in-data-file-dir", BOOLEAN, "Whether index files lie beside data files.",
           "false", FIXED, ForOthers("index files lie together")),
    _kept("local-merge-buffer-size", SIZE, None, "Memory to merge in before rows are sent.",
          _METADATA),
    _kept("local-sort.max-num-file-handles", integer(2), "128", "Files open while sorting.",
          _SORTS),
    _kept("sort-engine", choice("min-heap", "loser-tree"), "loser-tree", "How runs are merged.",
          _SORTS),
    _kept("sort-spill-buffer-size", SIZE, "64 mb", "Memory before sorting spills.", _SORTS),
    _kept("sort-spill-threshold", integer(1), None, "Runs before merging spills.", _SORTS),
    _kept("spill-compression", TEXT, "zstd", "The codec of what is spilled.", _SORTS),
    _kept("write-buffer-for-append", BOOLEAN, "false", "Whether appends are buffered.", _SORTS),
    _kept("write-buffer-spillable", BOOLEAN, None, "Whether the write buffer spills.", _SORTS),
    _kept("write-buffer-spill.max-disk-size", SIZE, None, "How much it spills.", _SORTS),
    _kept("write-max-writers-to-spill", integer(1), "10", "Writers before they spill.", _SORTS),
    _kept("manifest.compression", TEXT, "zstd", "The codec of manifests.", _METADATA),
    _kept("manifest.format", choice("avro"), "avro", "The format of manifests.", _METADATA),
    _kept("write-manifest-cache", SIZE, "0 b", "Memory for manifests.", _METADATA),
    _kept("metadata.stats-dense-store", BOOLEAN, "true", "Whether empty statistics are left out.",
          _METADATA),
    _kept("metadata.stats-keep-first-n-columns", integer(-1), "-1", "Columns with statistics.",
          _METADATA),
    _kept("metadata.stats-mode.per.level", LEVELS, "", "Statistics by level.",
          "'metadata.stats-mode' says it for all levels"),
    _kept("parquet.enable.dictionary", BOOLEAN, None, "Whether Parquet uses dictionaries.",
          "writes choose column by column"),
    _kept("write.sequence-number-init-mode", choice("scan", "snapshot"), "scan",
          "Where writers find the highest sequence number.", _METADATA),
)  # fmt: skip

SECTIONS: dict[str, tuple[Option, ...]] = {
    "Keys and layout": _LAYOUT,
    "Which version wins": _ORDER,
    "Tables that others keep": _EXTERNAL,
    "Columns": _COLUMNS,
    "Writing": _WRITING,
    "Reading": _READING,
    "Changelogs and streams": _CHANGES,
    "Compaction": _COMPACTION,
    "Snapshots, tags and partitions": _HISTORY,
    "Publishing": _PUBLISHING,
    "Writers of other engines": _WRITERS,
}
"""The rows, by subject. A key is matched by the first row that fits."""
