"""Opening of warehouses and single tables by their addresses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keytide.base.arguments import check_spark_session, checked
from keytide.catalogs.catalog import open_stored
from keytide.catalogs.metastore.warehouse import is_metastore_address, open_metastore_warehouse
from keytide.catalogs.rest.warehouse import is_rest_address, open_rest_warehouse
from keytide.catalogs.warehouse import FolderWarehouse, Warehouse, cache_folder, with_cache
from keytide.dml.attachments import AttachedCatalog
from keytide.lake.lake import Lake
from keytide.lake.table import Table
from keytide.store import Store, open_store

__all__ = ["connect", "open_table"]

_CACHE_NAMES = ("cache", "cache_bytes")


@checked
def connect(
    warehouse: str | Path,
    spark: Any = None,
    *,
    options: Mapping[str, str] | None = None,
    store: Store | None = None,
    allow_external_files: bool = False,
    cache: str | Path | None = None,
    cache_bytes: int | str | None = None,
) -> Lake:
    """Open a warehouse: a local folder, an `s3://`, `gs://` or `az://` address, or a catalog.

    This call reads and creates nothing.

    - `warehouse` is a path, an object store address, or the address of a catalog
      (docs/catalogs.md). `http://` and `https://` are a service that implements Apache Paimon's
      REST protocol, `glue://` is the Data Catalog of AWS Glue, and `thrift://host:port` is a Hive
      Metastore.
    - `spark` is a Spark session. With it, SQL, bulk reads and writes of Spark DataFrames run on
      that session. Compactions, rescaling and indexing run on its executors, unless they read
      little (option 'spark.driver-work.max-size').
    - `options` are passed to the object store under obstore's names, such as `aws_region`. An
      option that is not given is taken from the environment. A REST service has options with
      Paimon's names: `warehouse`, `token.provider` ('bear') and `token`. Its other options go to
      the object store that holds the tables. For Glue and Hive, the option `warehouse` is the
      location where new databases are created.
    - `store` replaces the store in tests.
    - `allow_external_files` lets queries read files and addresses outside the warehouse
      (`read_csv('...')`, `FROM 'a.parquet'`), and whatever else the SQL engine can reach, with the
      permissions of this process. By default, SQL sees only the tables of the warehouse, and
      defines external tables only in its folder. Calls such as `Lake.adopt` accept any location.
    - `cache` is a folder on local disk, on this machine and on each Spark executor. It holds copies
      of immutable files of an object store: data files, manifests and indexes. All processes that
      name the folder share the copies, and copies used least recently are evicted first. The folder
      is private to this account. Anyone who can read it can read the data in it. It holds no
      credentials.
    - `cache_bytes` is the size limit of the cache for all processes together. Default:
      '10 gb'.

    Raises:

    - `InvalidError` for an address that no store supports, an option that the store does not know,
      a REST service without a warehouse name, and anything but a Spark session. Also for a cache of
      a lake on local disk, a cache path that is not a folder, and a `cache_bytes` that is not a
      size, is less than 1 MiB, or is given without `cache`.
    - `UnsupportedError` for another token provider.
    - `SetupError` when the library for a catalog is not installed.
    """
    if spark is not None:
        check_spark_session(spark, "connect")
    copies = cache_folder(cache, cache_bytes, _CACHE_NAMES)
    address = str(warehouse)
    opened: Warehouse
    if store is None and is_rest_address(address):
        opened = open_rest_warehouse(address, options, copies)
    elif store is None and is_metastore_address(address):
        opened = open_metastore_warehouse(address, options, copies)
    else:
        found = open_store(address, options) if store is None else store
        opened = FolderWarehouse(with_cache(found, copies))
    return Lake(AttachedCatalog(opened, allow_external_files), spark)


@checked
def open_table(
    path: str | Path,
    *,
    options: Mapping[str, str] | None = None,
    cache: str | Path | None = None,
    cache_bytes: int | str | None = None,
) -> Table:
    """Open the table at a path or address, regardless of its warehouse.

    `options`, `cache` and `cache_bytes` have the same meaning as in `connect`. Raises
    `NotFoundError` when there is no table, and `InvalidError` as `connect` does.
    """
    copies = cache_folder(cache, cache_bytes, _CACHE_NAMES)
    return Table.of(open_stored(str(path), options, cache=copies))
