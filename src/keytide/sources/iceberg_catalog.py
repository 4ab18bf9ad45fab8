"""The location of an Iceberg table, and the storage that has its files.

A location is a folder, a metadata file, or a name in a catalog. The files can be read in this
process and in others.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property, library
from keytide.dml.database_addresses import without_secrets
from keytide.errors import (
    ConflictError,
    DataError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)
from keytide.sources.source import Place
from keytide.store import Store, open_store, store_of_file

# -- storage ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IcebergStorage:
    """Opens files, in any process.

    Environment settings of the catalog are not pickled, because each process has its own. The
    lake's options and the catalog's temporary credentials for the table's files are pickled.
    """

    catalog: str | None
    """The name of the catalog in the environment, None if there is no catalog."""
    location: str
    given: tuple[tuple[str, str], ...] = field(repr=False)

    @staticmethod
    def of(table: Any, catalog: str | None) -> IcebergStorage:
        """The storage of a `pyiceberg` table, with or without a catalog."""
        environment = environment_of(catalog)
        given = sorted(
            (name, value)
            for name, value in table.io.properties.items()
            # This excludes an object with the catalog's token, which only catalog requests need.
            if isinstance(value, str) and environment.get(name) != value
        )
        made = IcebergStorage(catalog, table.metadata.location, tuple(given))
        vars(made)["io"] = table.io
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return IcebergStorage, (self.catalog, self.location, self.given)

    @cached_property
    def io(self) -> Any:
        """The library's file access object. Raises `SetupError` without the extra."""
        io = library("pyiceberg.io", "iceberg", f"Iceberg table {self.location}")
        properties = {**environment_of(self.catalog), **dict(self.given)}
        return io.load_file_io(properties, self.location)


def environment_of(catalog: str | None) -> dict[str, Any]:
    """The environment's settings for a catalog, if there is one, and for the object store.

    For the store, these are the settings that `pyiceberg` does not read itself.
    """
    of_store = {
        name: os.environ[found]
        for name, variables in _VARIABLES.items()
        if (found := next(filter(os.environ.get, variables), None)) is not None
    }
    if catalog is None:
        return of_store
    config = library("pyiceberg.utils.config", "iceberg", f"catalog {catalog}")
    return {**of_store, **(config.Config().get_catalog_config(catalog) or {})}


_VARIABLES = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}


# -- the location ----------------------------------------------------------------------------------


CATALOG_OPTIONS = ("catalog.name", "catalog.type", "catalog.uri", "catalog.warehouse")
_CATALOG_TYPES = ("sql", "rest")
_METADATA = re.compile(r"v?(\d+)(?:-[\w-]+)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_HINT = "metadata/version-hint.text"
_PLAIN = ("uri", "type", "warehouse", "s3.endpoint", "s3.region")
"""Environment settings that are not secret. All others may be."""
_FILE_OPTIONS = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "token": "s3.session-token",
}


@dataclass(frozen=True)
class IcebergPlace:
    """How a table is opened. `catalog` has the options of a catalog, if the table is in one.

    `storage` can contain secrets and is never shown.
    """

    name: str
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def shown(self) -> str:
        """The table in messages."""
        kind = dict(self.catalog).get("type")
        # A SQL catalog shows only the tables under its own name.
        named = f" of the name {self.catalog_name!r} (catalog.name)" if kind == "sql" else ""
        return f"Iceberg table {self.name}" + (f" in a {kind} catalog{named}" if kind else "")

    @property
    def catalog_name(self) -> str | None:
        """The name of the catalog in the environment, None without a catalog."""
        return dict(self.catalog).get("name", "default") if self.catalog else None

    def open(self) -> Any:
        """The latest state of the table as a `pyiceberg` object.

        Raises `NotFoundError` if it does not exist, as `errors`, and `SetupError` without the
        extra.
        """
        if not self.catalog:
            library("pyiceberg", "iceberg", self.shown)
            table = library("pyiceberg.table", "iceberg", self.shown)
            uri = self.name if self.name.endswith(_ENDINGS) else self._newest_metadata()
            return table.StaticTable.from_metadata(uri, self._properties())
        catalogs = library("pyiceberg.catalog", "iceberg", self.shown)
        properties = {**self._properties(), **dict(self.storage), **dict(self.catalog)}
        properties.pop("name", None)  # a SQL catalog stores tables under its own name
        return catalogs.load_catalog(self.catalog_name, **properties).load_table(self.name)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of `pyiceberg` to `KeytideError`s without secrets."""
        try:
            yield
        except KeytideError:
            raise
        except Exception as error:
            # An error of any type that was raised within the library is not a defect of Keytide.
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            modules = [type(error).__module__, *(f.f_globals.get("__name__", "") for f in frames)]
            packages = {module.split(".")[0] for module in modules}
            if not isinstance(error, _PLAIN_ERRORS) and packages.isdisjoint(_LIBRARIES):
                raise
            text = " ".join(str(error).split()) or type(error).__name__
            environment = environment_of(self.catalog_name)
            of_catalog = [
                (k, v) for k, v in environment.items() if k not in _PLAIN and isinstance(v, str)
            ]
            for _, value in (*self.storage, *of_catalog):
                text = text.replace(value, "***") if len(value) > 3 else text
            text = without_secrets(text, dict(self.catalog).get("uri", ""))
            raise _translated(error, self.shown, text) from None

    def _newest_metadata(self) -> str:
        """The metadata file with the highest number. Of several, the one in the hint."""
        store = open_store(self.name, dict(self.storage))
        names = store.list_names("metadata")
        numbers = {name: int(m[1]) for name in names if (m := _METADATA.fullmatch(name))}
        if not numbers:
            raise NotFoundError(
                f"{self.shown}: the folder has no metadata/*.metadata.json; give the folder of a "
                "table, its metadata file, or a catalog"
            )
        highest = max(numbers.values())
        newest = sorted(name for name, number in numbers.items() if number == highest)
        if len(newest) > 1:
            (hint,) = store.read_present([_HINT])
            hinted = (hint or b"").decode(errors="replace").strip()
            newest = [name for name in newest if hinted in (name, name.split(".")[0])]
        if len(newest) != 1:
            raise DataError(
                f"{self.shown}: several metadata files have the number {highest}, and there is "
                f"no {_HINT}; give the metadata file, or the table's catalog"
            )
        return store.uri_of(f"metadata/{newest[0]}")

    def _properties(self) -> dict[str, Any]:
        """The environment's settings for catalog and store, and the lake's store options."""
        given = {name.removeprefix("aws_"): value for name, value in self.storage}
        of_files = {
            _FILE_OPTIONS[name]: value for name, value in given.items() if name in _FILE_OPTIONS
        }
        return {**environment_of(self.catalog_name), **of_files}


_ENDINGS = (".metadata.json", ".metadata.json.gz")


def iceberg_place(place: Place) -> IcebergPlace:
    """The place in a definition. Nothing is read.

    Raises `InvalidError` for unknown options, and for secrets among them.
    """
    location, options = place.location, place.options
    unknown = sorted(set(options) - set(CATALOG_OPTIONS))
    if unknown:
        raise InvalidError(
            f"Iceberg table {location} has no option {unknown[0]!r}; options: "
            f"{', '.join(CATALOG_OPTIONS)}; set credentials in the environment"
        )
    catalog = {name.removeprefix("catalog."): value for name, value in options.items()}
    if not catalog:
        return IcebergPlace(location, storage=_options_of_store(location, place.near))
    uri = catalog.get("uri", "")
    if not uri or re.search(r"//[^/]*@|[?&;]", uri):
        raise InvalidError(
            f"Iceberg table {location}: catalog.uri is missing, or contains a user, a password "
            "or a query; expected sqlite:///path or https://host, with credentials in the "
            "environment"
        )
    kind = catalog.setdefault("type", "rest" if uri.startswith(("http:", "https:")) else "sql")
    if kind not in _CATALOG_TYPES:
        raise InvalidError(
            f"Iceberg table {location}: catalog.type is {kind!r}; expected "
            f"{' or '.join(_CATALOG_TYPES)}"
        )
    storage = _options_of_store(catalog["warehouse"], place.near) if "warehouse" in catalog else ()
    return IcebergPlace(location, tuple(sorted(catalog.items())), storage)


def _options_of_store(location: str, near: Store) -> tuple[tuple[str, str], ...]:
    """The options of the store at a location: those of the lake if it is the same bucket."""
    store = store_of_file(f"{location.rstrip('/')}/x", near)[0].uncached()
    return tuple(sorted((store.polars_options() or {}).items()))


_PLAIN_ERRORS = (OSError, ValueError, NotImplementedError, pa.ArrowException)
_LIBRARIES = ("pyiceberg", "sqlalchemy", "requests", "pydantic_core", "botocore")


_NOT_FOUND = ("NoSuchTableError", "NoSuchNamespaceError", "NoSuchIcebergTableError")
_CONFLICTS = ("CommitFailedException", "ValidationException")


def _translated(error: Exception, shown: str, text: str) -> KeytideError:
    name = type(error).__name__
    if name in _NOT_FOUND:
        return NotFoundError(f"{shown}: the table does not exist ({text})")
    if name in _CONFLICTS:
        return ConflictError(f"{shown}: another writer committed first ({text})")
    if name == "CommitStateUnknownException":
        return DataError(
            f"{shown}: it is unknown whether the rows were written: read the table before you "
            f"repeat the write ({text})"
        )
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{shown}: one of its files does not exist ({text})")
    unknown = re.search(r"Unsupported field type: '?(\w+)", text)
    if unknown is not None:
        return UnsupportedError(
            f"{shown} has a column of type {unknown[1]}, which Keytide does not support; remove "
            "the column from that table, or change its type"
        )
    if isinstance(error, NotImplementedError) or re.search(
        "not (yet )?support|unsupported|not supported|format.version", text, re.IGNORECASE
    ):
        return UnsupportedError(
            f"{shown} requires a feature that this release does not support: {text}"
        )
    return DataError(f"{shown} cannot be read: {text}")
