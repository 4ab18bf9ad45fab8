"""The compared engines, each with the same few calls.

Every engine receives Arrow tables and returns one, and is used as its documentation shows. Peers
are imported only when an engine is created. A missing peer is reported and not required.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from workload import SCHEMA


class Engine(ABC):
    """One table of one engine in its own directory.

    `buckets` is for engines that write the Paimon format. Creating an engine imports it and opens
    the table if it exists.
    """

    distribution: str
    """The package whose version is reported."""

    has_buckets = False
    compacts = False
    """Whether it can be compacted on request."""

    def __init__(self, directory: Path, buckets: int) -> None:
        self.directory = directory
        self.buckets = buckets

    def create(self) -> None:  # noqa: B027  # not every engine has this step
        """Create an empty table, if that is a separate step. Not measured."""

    @abstractmethod
    def load(self, rows: pa.Table) -> None:
        """Write the first rows, with unique keys."""

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None:
        """Insert rows or replace those with the same `id`, in one commit."""

    @abstractmethod
    def read(self) -> pa.Table:
        """All rows and columns of the latest version."""

    def compact(self) -> None:
        """Rewrite everything as few large files without outdated rows. REQUIRES: `compacts`."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  # not every engine has this step
        """Release the table."""


class Keytide(Engine):
    distribution = "keytide"
    has_buckets = True
    compacts = True
    options: ClassVar[dict[str, str]] = {}

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        import keytide

        self.lake = keytide.connect(directory)
        self.table = self.lake.table("bench.t") if self.lake.tables() else None

    def create(self) -> None:
        options = {"bucket": str(self.buckets), **self.options}
        self.table = self.lake.create_table("bench.t", SCHEMA, ["id"], options=options)

    def load(self, rows: pa.Table) -> None:
        self.table.write(rows)

    upsert = load

    def read(self) -> pa.Table:
        return self.table.scan().to_arrow()

    def compact(self) -> None:
        self.table.compact(full=True)

    def close(self) -> None:
        self.table.close()


class KeytideIndex(Keytide):
    """A table with a key index."""

    options: ClassVar[dict[str, str]] = {"upsert.mode": "full"}


class KeytideInFront(Keytide):
    """Every compaction runs in the write that made it due."""

    options: ClassVar[dict[str, str]] = {"compaction.background": "false"}


class KeytideUncompacted(Keytide):
    """No compaction: the cost of writing alone."""

    options: ClassVar[dict[str, str]] = {"write-only": "true"}


class PypaimonRust(Engine):
    distribution = "pypaimon-rust"
    has_buckets = True

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        from pypaimon_rust.datafusion import PaimonCatalog, SQLContext

        self.options = {"warehouse": str(directory)}
        self.catalog_type = PaimonCatalog
        self.context = SQLContext()
        self.context.register_catalog("lake", self.options)

    def create(self) -> None:
        self.context.sql("CREATE SCHEMA lake.bench")
        self.context.sql(
            "CREATE TABLE lake.bench.t (id BIGINT NOT NULL, a BIGINT, b DOUBLE, c BIGINT, "
            f"s STRING, PRIMARY KEY (id)) WITH ('bucket' = '{self.buckets}')"
        )

    def load(self, rows: pa.Table) -> None:
        builder = self._table().new_batch_write_builder()
        write = builder.new_write()
        for batch in rows.to_batches():
            write.write_arrow(batch)
        builder.new_commit().commit(write.prepare_commit())

    upsert = load

    def read(self) -> pa.Table:
        builder = self._table().new_read_builder()
        splits = builder.new_scan().plan().splits()
        return pa.Table.from_batches(builder.new_read().read_arrow(splits))

    def _table(self):
        return self.catalog_type(self.options).get_table("bench.t")


class Chdb(Engine):
    """ReplacingMergeTree: merges in the background, and is read with FINAL, which merges the
    rest.
    """

    distribution = "chdb"
    compacts = True
    settings = ""

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        from chdb.session import Session

        self.session = Session(str(directory))

    def create(self) -> None:
        self.session.query(
            "CREATE TABLE t (id Int64, a Int64, b Float64, c Int64, s String) "
            f"ENGINE = ReplacingMergeTree ORDER BY id {self.settings}"
        )

    def load(self, rows: pa.Table) -> None:
        self.session.query("INSERT INTO t SELECT * FROM Python(rows)")

    upsert = load

    def read(self) -> pa.Table:
        return self.session.query("SELECT * FROM t FINAL", "ArrowTable")

    def compact(self) -> None:
        self.session.query("OPTIMIZE TABLE t FINAL")

    def close(self) -> None:
        self.session.close()


class ChdbSynced(Chdb):
    """The same with each insert synced to disk when it returns, like Keytide's commits."""

    settings = "SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"


class Ducklake(Engine):
    """DuckDB's lake format: Parquet files, and a catalog in a database file."""

    distribution = "duckdb"

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        import duckdb

        self.connection = duckdb.connect()
        try:
            self.connection.execute("LOAD ducklake")
        except duckdb.Error as error:
            raise ModuleNotFoundError("DuckDB's extension ducklake") from error
        self.connection.execute(
            f"ATTACH 'ducklake:{directory}/catalog' AS lake (DATA_PATH '{directory}/data')"
        )

    def create(self) -> None:
        self.connection.execute(
            "CREATE TABLE lake.t (id BIGINT, a BIGINT, b DOUBLE, c BIGINT, s VARCHAR)"
        )

    def load(self, rows: pa.Table) -> None:
        self.connection.execute("INSERT INTO lake.t SELECT * FROM rows")

    def upsert(self, rows: pa.Table) -> None:
        self.connection.execute(
            "MERGE INTO lake.t USING rows USING (id) WHEN MATCHED THEN UPDATE "
            "WHEN NOT MATCHED THEN INSERT"
        )

    def read(self) -> pa.Table:
        return self.connection.execute("FROM lake.t").to_arrow_table()

    def close(self) -> None:
        self.connection.close()


class Pylance(Engine):
    distribution = "pylance"
    compacts = True

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        import lance

        self.lance = lance
        self.uri = str(directory / "t.lance")

    def load(self, rows: pa.Table) -> None:
        self.lance.write_dataset(rows, self.uri)

    def upsert(self, rows: pa.Table) -> None:
        merge = self.lance.dataset(self.uri).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def read(self) -> pa.Table:
        return self.lance.dataset(self.uri).to_table()

    def compact(self) -> None:
        self.lance.dataset(self.uri).optimize.compact_files()


class Deltalake(Engine):
    distribution = "deltalake"
    compacts = True

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        import deltalake

        self.deltalake = deltalake
        self.uri = str(directory / "t")

    def load(self, rows: pa.Table) -> None:
        self.deltalake.write_deltalake(self.uri, rows)

    def upsert(self, rows: pa.Table) -> None:
        merge = self.deltalake.DeltaTable(self.uri).merge(
            rows, "target.id = source.id", source_alias="source", target_alias="target"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def read(self) -> pa.Table:
        # Its own query engine is faster than `to_pyarrow_table`.
        builder = self.deltalake.QueryBuilder()
        builder.register("t", self.deltalake.DeltaTable(self.uri))
        return pa.table(builder.execute("SELECT * FROM t").read_all())

    def compact(self) -> None:
        self.deltalake.DeltaTable(self.uri).optimize.compact()


class Pypaimon(Engine):
    distribution = "pypaimon"
    has_buckets = True

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        import pypaimon

        self.schema_type = pypaimon.Schema
        self.catalog = pypaimon.CatalogFactory.create({"warehouse": str(directory)})

    def create(self) -> None:
        self.catalog.create_database("bench", ignore_if_exists=True)
        schema = self.schema_type.from_pyarrow_schema(
            SCHEMA, primary_keys=["id"], options={"bucket": str(self.buckets)}
        )
        self.catalog.create_table("bench.t", schema, ignore_if_exists=False)

    def load(self, rows: pa.Table) -> None:
        builder = self.catalog.get_table("bench.t").new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(rows)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    upsert = load

    def read(self) -> pa.Table:
        builder = self.catalog.get_table("bench.t").new_read_builder()
        splits = builder.new_scan().plan().splits()
        return builder.new_read().to_arrow(splits)


class Pyiceberg(Engine):
    distribution = "pyiceberg"

    def __init__(self, directory: Path, buckets: int) -> None:
        super().__init__(directory, buckets)
        from pyiceberg.catalog.sql import SqlCatalog

        self.catalog = SqlCatalog(
            "bench", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}"
        )

    def create(self) -> None:
        self.catalog.create_namespace("bench")
        self.catalog.create_table("bench.t", SCHEMA)

    def load(self, rows: pa.Table) -> None:
        self.catalog.load_table("bench.t").append(rows)

    def upsert(self, rows: pa.Table) -> None:
        self.catalog.load_table("bench.t").upsert(rows, join_cols=["id"])

    def read(self) -> pa.Table:
        return self.catalog.load_table("bench.t").scan().to_arrow()


ENGINES: dict[str, type[Engine]] = {
    "keytide-index": KeytideIndex,
    "keytide-in-front": KeytideInFront,
    "keytide-uncompacted": KeytideUncompacted,
    "chdb-synced": ChdbSynced,
    "ducklake": Ducklake,
    **{
        engine.distribution: engine
        for engine in (Keytide, PypaimonRust, Chdb, Pylance, Deltalake, Pypaimon, Pyiceberg)
    },
}
SLOW = ("pypaimon", "pyiceberg")
"""Engines that take minutes for the whole workload and get a fifth of it."""

VARIANTS = ("keytide-in-front", "keytide-uncompacted", "chdb-synced", "ducklake")
"""Engines that are measured only on request."""
