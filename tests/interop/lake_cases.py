"""What engines do to Delta and Iceberg tables, statement by statement."""

# ruff: noqa: E501  # statements stand on one line

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COLUMNS = "k BIGINT, ts INT, deleted BOOLEAN, v STRING, n INT"
KEYS = {"primary_key": ["k"], "watermark_key": ["ts"], "tombstone_key": "deleted"}


@dataclass(frozen=True)
class Case:
    """A table: what is done to it by SQL, or by calls that get the session and its name."""

    format: str
    name: str
    steps: list[Any]
    refused: str | None = None
    """What the refusal says where it cannot be read."""
    shown: tuple[int, ...] | None = None
    """The numbers `n` of the rows that are shown at last, where more than watermarks decide."""
    has_full_paths: bool = False
    """Whether it can be read only where it was written."""


def insert(first: int, more: str = "") -> str:
    """Six versions of four keys, some of them late, one a tombstone; no two are of one time."""
    values = []
    for n in range(first, first + 6):
        k, ts, dead = n % 4, n * 7 % 31, n % 6 == 4
        values.append(f"({k}, {ts}, {str(dead).lower()}, 'v{9999 - n}', {n}{more})")
    return f"INSERT INTO {{t}} VALUES {', '.join(values)}"


def tie(k: int, n: int, v: str) -> str:
    """A version that has its time in common with all others of its key."""
    return f"INSERT INTO {{t}} VALUES ({k}, 1, false, '{v}', {n})"


A, B, C, D = (insert(first) for first in (0, 6, 12, 18))


def delta(name: str, *steps: Any, **more: Any) -> Case:
    return Case("delta", f"delta_{name}", list(steps), **more)


def iceberg(name: str, *steps: Any, **more: Any) -> Case:
    return Case("iceberg", f"iceberg_{name}", list(steps), **more)


def delta_table(columns: str = COLUMNS, more: str = "", **options: str) -> str:
    told = ", ".join(f"'delta.{name}' = '{value}'" for name, value in options.items())
    properties = f"TBLPROPERTIES ({told})" if told else ""
    return f"CREATE TABLE {{t}} ({columns}) USING delta {more} {{location}} {properties}"


def iceberg_table(columns: str = COLUMNS, more: str = "", **options: str) -> str:
    told = {"format-version": "2"} | {name.replace("_", "."): v for name, v in options.items()}
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in told.items())
    return f"CREATE TABLE {{t}} ({columns}) USING iceberg {more} TBLPROPERTIES ({properties})"


MARKED = {"enableDeletionVectors": "true"}
MAPPED = {"columnMapping.mode": "name"}
TYPES = """k BIGINT, ts INT, deleted BOOLEAN, i8 TINYINT, i16 SMALLINT, f FLOAT, d DOUBLE,
    dec DECIMAL(20, 4), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, b BINARY, a ARRAY<INT>,
    m MAP<STRING, BIGINT>, s STRUCT<x: INT, y: ARRAY<STRUCT<z: STRING>>>"""
VALUES = """INSERT INTO {t} VALUES
    (1, 1, false, 1Y, 2S, 1.5F, -2.25D, 12345.6789, DATE'1969-12-31', TIMESTAMP'2024-02-29 12:34:56.789012',
     TIMESTAMP_NTZ'1899-01-01 00:00:00.000001', X'00FF', array(1, null), map('a', 1L, 'b', null),
     named_struct('x', 1, 'y', array(named_struct('z', 'q'), named_struct('z', null)))),
    (2, 1, false, null, null, null, null, null, null, null, null, null, null, null, null),
    (3, 1, false, -128Y, -32768S, float('NaN'), double('-Infinity'), -1, DATE'9999-12-31',
     TIMESTAMP'1582-10-15 00:00:00', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', X'', array(), map(),
     named_struct('x', null, 'y', null)),
    (4, 1, true, 0Y, 0S, 0F, 0D, 0, DATE'2024-01-01', TIMESTAMP'2024-01-01 00:00:00',
     TIMESTAMP_NTZ'2024-01-01 00:00:00', X'01', array(1), map('', 0L), named_struct('x', 1, 'y', array()))"""
PARTS = """INSERT INTO {t} VALUES
    (1, 1, false, 'a', 1, DATE'2024-01-01', 'New York'), (2, 1, false, 'b', 2, DATE'2024-01-01', 'a/b=c%20'),
    (3, 1, false, 'c', 3, null, null), (4, 1, false, 'd', 4, DATE'1969-12-31', 'Köln')"""
MORE_PARTS = """INSERT INTO {t} VALUES
    (1, 2, false, 'e', 5, DATE'2024-01-02', 'New York'), (2, 2, true, 'f', 6, DATE'2024-01-01', 'a/b=c%20'),
    (3, 0, false, 'g', 7, null, 'x')"""
WITH_PARTS = COLUMNS + ", day DATE, city STRING"


DELTA = [
    delta("appended", delta_table(), A, B, C),
    delta("tied", delta_table(), tie(1, 0, "b"), tie(1, 1, "a"), tie(2, 2, "d"), tie(2, 3, "c"),
          tie(3, 4, "f"), tie(3, 5, "e"), "OPTIMIZE {t}", tie(2, 6, "a"),
          shown=(0, 4, 6)),
    delta("partitioned", delta_table(WITH_PARTS, "PARTITIONED BY (day, city)"), PARTS, MORE_PARTS),
    delta(
        "partitioned_marked", delta_table(WITH_PARTS, "PARTITIONED BY (day, city)", **MARKED),
        PARTS, MORE_PARTS, "DELETE FROM {t} WHERE n IN (5, 6)", "DELETE FROM {t} WHERE city IS NULL",
        "DELETE FROM {t} WHERE day = DATE'2024-01-01'",
    ),
    delta(
        "marked", delta_table(**MARKED), A, "DELETE FROM {t} WHERE n = 2", B,
        "DELETE FROM {t} WHERE n IN (3, 8)", "UPDATE {t} SET v = 'u' WHERE n = 10", C,
        "MERGE INTO {t} USING (SELECT 13 AS n) AS s ON {t}.n = s.n "
        "WHEN MATCHED THEN UPDATE SET v = 'm'",
    ),
    delta("purged", delta_table(**MARKED), A, B, "DELETE FROM {t} WHERE n % 4 = 1",
          "REORG TABLE {t} APPLY (PURGE)", C),
    delta("copied", delta_table(enableDeletionVectors="false"), A, B,
          "UPDATE {t} SET v = 'u' WHERE n = 4", "DELETE FROM {t} WHERE n = 7", C),
    delta(
        "renamed", delta_table(**MAPPED), A, "ALTER TABLE {t} RENAME COLUMN v TO w", B,
        "ALTER TABLE {t} ADD COLUMN v INT AFTER ts", insert(12).replace("'v", "'w").replace(
            "INSERT INTO {t} VALUES", "INSERT INTO {t} (k, ts, deleted, w, n) VALUES"),
        "ALTER TABLE {t} DROP COLUMN w",
    ),
    delta(
        "by_id", delta_table(COLUMNS + ", s STRUCT<x: INT, y: STRING>",
                             **{"columnMapping.mode": "id"}),
        insert(0, ", named_struct('x', 1, 'y', 'q')"),
        "ALTER TABLE {t} RENAME COLUMN s.x TO z", "ALTER TABLE {t} ADD COLUMN s.x BIGINT FIRST",
        insert(6, ", named_struct('x', 5L, 'z', 2, 'y', 'r')"), "ALTER TABLE {t} DROP COLUMN s.y",
    ),
    delta(
        "mapped_parts", delta_table(WITH_PARTS, "PARTITIONED BY (day, city)", **MAPPED, **MARKED),
        PARTS, "ALTER TABLE {t} RENAME COLUMN city TO town", MORE_PARTS,
        "DELETE FROM {t} WHERE town = 'x'",
    ),
    delta("optimized", delta_table(**MARKED), A, B, "OPTIMIZE {t}", C,
          "OPTIMIZE {t} ZORDER BY (k)", "DELETE FROM {t} WHERE n = 1", D),
    delta("clustered", delta_table(more="CLUSTER BY (k)"), A, B, "OPTIMIZE {t}", C),
    delta("summed_up", delta_table(**MARKED, checkpointPolicy="v2", checkpointInterval="2"),
          A, B, "DELETE FROM {t} WHERE n = 3", C, D, insert(24)),
    delta("summed_up_v1", delta_table(checkpointInterval="2", **{"checkpoint.writeStatsAsStruct":
          "true", "checkpoint.writeStatsAsJson": "false"}), A, B, C, D),
    delta(
        "widened", delta_table("k INT, ts SMALLINT, deleted BOOLEAN, v FLOAT, n INT, d DATE, "
                               "x DECIMAL(6, 2), y TINYINT", enableTypeWidening="true", **{"feature.timestampNtz": "supported"}),
        "INSERT INTO {t} VALUES (1, 1, false, 1.5, 1, DATE'2024-02-29', 12.34, 1), "
        "(2, 1, false, 0.1, 2, DATE'1969-12-31', 0.5, 2)",
        "ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT", "ALTER TABLE {t} ALTER COLUMN ts TYPE INT",
        "ALTER TABLE {t} ALTER COLUMN v TYPE DOUBLE",
        "ALTER TABLE {t} ALTER COLUMN d TYPE TIMESTAMP_NTZ",
        "ALTER TABLE {t} ALTER COLUMN x TYPE DECIMAL(12, 4)",
        "ALTER TABLE {t} ALTER COLUMN n TYPE DOUBLE", "ALTER TABLE {t} ALTER COLUMN y TYPE DECIMAL(12, 1)",
        "INSERT INTO {t} VALUES (9999999999, 40000, false, 0.1D, 3.5D, "
        "TIMESTAMP_NTZ'2024-01-01 01:02:03', 12345678.1234, 10.5), (1, 2, false, 2D, 4, null, 0, 0)",
    ),
    delta(
        "schema_merged", delta_table("k BIGINT, ts INT, deleted BOOLEAN"),
        "INSERT INTO {t} VALUES (1, 1, false), (2, 1, false)",
        lambda spark, table: spark.sql(
            "SELECT 2L AS k, 2 AS ts, false AS deleted, 'new' AS v, named_struct('x', 1) AS s"
        ).write.option("mergeSchema", "true").mode("append").format("delta").saveAsTable(table),
        lambda spark, table: spark.sql(
            "SELECT 1L AS k, 0 AS ts, false AS deleted, named_struct('x', 2, 'y', 'z') AS s"
        ).write.option("mergeSchema", "true").mode("append").format("delta").saveAsTable(table),
    ),
    delta("every_type", delta_table(TYPES), VALUES),
    delta("variant", delta_table(COLUMNS + ", x VARIANT"),
          insert(0, """, parse_json('{{"a": 1}}')"""), refused="'x' has the type variant"),
    delta("restored", delta_table(), A, B, "RESTORE TABLE {t} TO VERSION AS OF 1", C),
    delta("overwritten", delta_table(), A, B.replace("INTO", "OVERWRITE"), C),
    delta("constrained", delta_table(
        "k BIGINT NOT NULL, ts INT, deleted BOOLEAN, v VARCHAR(9), c CHAR(4), "
        "n BIGINT GENERATED ALWAYS AS IDENTITY, m BIGINT GENERATED ALWAYS AS (k * 2)"),
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (k > 0)",
        "INSERT INTO {t} (k, ts, deleted, v, c) VALUES (1, 1, false, 'a', 'bcde'), (2, 1, false, 'c', null)",
        "INSERT INTO {t} (k, ts, deleted, v, c) VALUES (2, 3, false, 'd', 'efgh')",
    ),
    delta("tracked", delta_table(enableRowTracking="true", enableInCommitTimestamps="true",
          enableChangeDataFeed="true", **MARKED), A, "UPDATE {t} SET v = 'u' WHERE n = 3", B,
          "DELETE FROM {t} WHERE n = 6"),
    delta("cloned", "CREATE TABLE {t}_origin (" + COLUMNS + ") USING delta "
          "LOCATION '{folder}/delta_origin' TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
          A.replace("{t}", "{t}_origin"), "DELETE FROM {t}_origin WHERE n = 2",
          "CREATE TABLE {t} SHALLOW CLONE {t}_origin {location}", B, "DELETE FROM {t} WHERE n = 3", has_full_paths=True),
]  # fmt: skip


MERGED_LATER = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
V3 = {"format-version": "3"}
BRANCHED = "ALTER TABLE {t} CREATE BRANCH side"


def by_java(change: Callable[[Any, Any], None]) -> Callable[[Any, str], None]:
    """A step that gets the classes of Iceberg, and the table as they have it."""

    def step(spark: Any, table: str) -> None:
        classes = spark._jvm.org.apache.iceberg
        change(classes, classes.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table))
        spark.sql(f"REFRESH TABLE {table}")

    return step


def add_with_default(classes: Any, table: Any) -> None:
    """Add a column whose value is 7 in the rows that are there."""
    seven = classes.expressions.Literal.of(7)
    table.updateSchema().addColumn("c", classes.types.Types.IntegerType.get(), seven).commit()


def delete_equal(classes: Any, table: Any) -> None:
    """Delete rows by their value of `n`, as Flink's upserts do by their key."""
    key, parquet = table.schema().select(["n"]), classes.FileFormat.PARQUET
    builder = classes.data.GenericFileWriterFactory.Builder(table).deleteFileFormat(parquet)
    ids = classes.util.ArrayUtil.toIntArray([5])
    factory = builder.equalityFieldIds(ids).equalityDeleteRowSchema(key).build()
    file = table.io().newOutputFile(f"{table.location()}/data/equal.parquet")
    output = classes.encryption.EncryptedFiles.plainAsEncryptedOutput(file)
    writer = factory.newEqualityDeleteWriter(output, table.spec(), None)
    row = classes.data.GenericRecord.create(key)
    row.setField("n", 1)
    writer.write(row)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


ICEBERG = [
    iceberg("appended", iceberg_table(), A, B, C),
    iceberg("tied", iceberg_table(), tie(1, 0, "b"), tie(1, 1, "a"), tie(2, 2, "d"), tie(2, 3, "c"),
            "CALL ice.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))",
            tie(2, 6, "a"), tie(3, 7, "b"), tie(3, 8, "a"), shown=(0, 6, 8)),
    iceberg("v1", iceberg_table(**{"format-version": "1"}), A, B),
    iceberg("marked", iceberg_table(**MERGED_LATER), A, "DELETE FROM {t} WHERE n = 2", B,
            "DELETE FROM {t} WHERE n IN (3, 8)", "UPDATE {t} SET v = 'u' WHERE n = 10", C,
            "MERGE INTO {t} AS t USING (SELECT 13 AS n) AS s ON t.n = s.n "
            "WHEN MATCHED THEN UPDATE SET v = 'm'"),
    iceberg("marked_v3", iceberg_table(**MERGED_LATER, **V3), A, "DELETE FROM {t} WHERE n = 2", B,
            "DELETE FROM {t} WHERE n IN (3, 8)", "UPDATE {t} SET v = 'u' WHERE n = 10", C,
            "DELETE FROM {t} WHERE n IN (1, 7, 14)"),
    iceberg("upgraded", iceberg_table(**MERGED_LATER), A, "DELETE FROM {t} WHERE n = 2", B,
            "ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')",
            "DELETE FROM {t} WHERE n IN (3, 8)", C),
    iceberg("copied", iceberg_table(), A, B, "UPDATE {t} SET v = 'u' WHERE n = 4",
            "DELETE FROM {t} WHERE n = 7", C),
    iceberg("partitioned_marked", iceberg_table(WITH_PARTS, "PARTITIONED BY (day, city)",
            **MERGED_LATER), PARTS, MORE_PARTS, "DELETE FROM {t} WHERE n IN (5, 6)",
            "DELETE FROM {t} WHERE n = 1"),
    iceberg("partitions_evolved", iceberg_table(WITH_PARTS, "PARTITIONED BY (city)", **MERGED_LATER),
            PARTS, "ALTER TABLE {t} ADD PARTITION FIELD bucket(4, k)",
            "ALTER TABLE {t} ADD PARTITION FIELD days(day)", MORE_PARTS,
            "ALTER TABLE {t} DROP PARTITION FIELD city",
            "ALTER TABLE {t} ADD PARTITION FIELD truncate(2, v)", PARTS.replace("1, false", "9, false"),
            "DELETE FROM {t} WHERE k = 3"),
    iceberg("renamed", iceberg_table(), A, "ALTER TABLE {t} RENAME COLUMN v TO w", B,
            "ALTER TABLE {t} ADD COLUMN v INT AFTER ts",
            C.replace("INSERT INTO {t} VALUES", "INSERT INTO {t} (k, ts, deleted, w, n) VALUES"),
            "ALTER TABLE {t} DROP COLUMN w", "ALTER TABLE {t} ALTER COLUMN n FIRST"),
    iceberg("widened", iceberg_table("k INT, ts INT, deleted BOOLEAN, v FLOAT, x DECIMAL(6, 2), "
            "s STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<e: INT>>, m MAP<STRING, STRUCT<f: INT>>"),
            "INSERT INTO {t} VALUES (1, 1, false, 1.5, 12.34, named_struct('a', 1, 'b', 'x'), "
            "array(named_struct('e', 1)), map('k', named_struct('f', 1)))",
            "ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT", "ALTER TABLE {t} ALTER COLUMN v TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN x TYPE DECIMAL(12, 2)",
            "ALTER TABLE {t} ALTER COLUMN s.a TYPE BIGINT", "ALTER TABLE {t} RENAME COLUMN s.b TO c",
            "ALTER TABLE {t} ADD COLUMN s.b INT FIRST", "ALTER TABLE {t} ADD COLUMN l.element.g STRING",
            "ALTER TABLE {t} RENAME COLUMN m.value.f TO h",
            "INSERT INTO {t} VALUES (9999999999, 1, false, 0.1D, 1234567890.12, "
            "named_struct('b', 7, 'a', 5L, 'c', 'y'), array(named_struct('e', 2, 'g', 'q')), "
            "map('k', named_struct('h', 3)))"),
    iceberg("rewritten", iceberg_table(**MERGED_LATER), A, "DELETE FROM {t} WHERE n = 2", B,
            "CALL ice.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))",
            C, "DELETE FROM {t} WHERE n = 9", "DELETE FROM {t} WHERE n = 13",
            "CALL ice.system.rewrite_position_delete_files(table => '{t}', "
            "options => map('rewrite-all', 'true'))",
            "CALL ice.system.rewrite_manifests('{t}')", D),
    iceberg("sorted", iceberg_table(), "ALTER TABLE {t} WRITE ORDERED BY k DESC, v", A, B, C),
    iceberg("branched", iceberg_table(**MERGED_LATER), A, "ALTER TABLE {t} CREATE TAG first", B, BRANCHED,
            C.replace("{t}", "{t}.branch_side"), "DELETE FROM {t}.branch_side WHERE n = 3", D,
            "ALTER TABLE {t} CREATE TAG last"),
    iceberg("expired", iceberg_table(**MERGED_LATER), A, B, "DELETE FROM {t} WHERE n = 3", C,
            "CALL ice.system.expire_snapshots(table => '{t}', older_than => TIMESTAMP '2100-01-01 00:00:00', "
            "retain_last => 1)", D),
    iceberg("rolled_back", iceberg_table(), A, B, "ALTER TABLE {t} CREATE TAG second", C,
            "CALL ice.system.set_current_snapshot(table => '{t}', ref => 'second')", D),
    iceberg("overwritten", iceberg_table(), A, B.replace("INTO", "OVERWRITE"), C),
    iceberg("every_type", iceberg_table(TYPES.replace("i8 TINYINT, i16 SMALLINT", "i8 INT, i16 INT")), VALUES),
    iceberg("every_type_v3", iceberg_table(TYPES.replace("i8 TINYINT, i16 SMALLINT", "i8 INT, i16 INT"), **V3), VALUES),
    iceberg("packed", iceberg_table(**{"write.metadata.compression-codec": "gzip",
            "write.parquet.compression-codec": "gzip"}), A, B),
    iceberg("variant", iceberg_table(COLUMNS + ", x VARIANT", **V3),
            insert(0, """, parse_json('{{"a": 1}}')"""), refused="a column of type variant"),
    iceberg("defaults", iceberg_table(**V3), A, by_java(add_with_default),
            insert(6, ", 8")),
    iceberg("orc", iceberg_table(**{"write.format.default": "orc"}), A, refused="has the format orc"),
    iceberg("avro", iceberg_table(**{"write.format.default": "avro"}), A, refused="has the format avro"),
    iceberg("equal", iceberg_table(), A, by_java(delete_equal), refused="equality deletes"),
]  # fmt: skip
