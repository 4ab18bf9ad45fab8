"""The state of a table at one snapshot: its view, its files, its schemas and its statements.

A view is a picklable value with what reading and writing need to know about a table.

Files in the table's own format are written by Keytide and compatible engines. The `TableView` of a
table with another file format provides another class. Its reader returns what a merge expects, and
the class says why the files must not be changed.

A statement is one change of a table, by whose tasks every file that it creates is named. A task can
end without a result: a cluster kills it, loses its process, or drops its result because another
task failed. The driver then finds their files by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.definition.column_rules import read_defaults
from keytide.definition.kind import TableKind, kind_of
from keytide.definition.times import ticks_of
from keytide.errors import DataError, InvalidError, NotFoundError, SetupError, UnsupportedError
from keytide.format import paths
from keytide.format.binary_row import decode_rows
from keytide.format.data_file import FileReader
from keytide.format.index_files import IndexFile
from keytide.format.manifest_entry import ManifestEntry
from keytide.format.partition import partition_paths
from keytide.format.paths import FileNames, main_store, new_uuid
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot
from keytide.key_index.indexed_keys import Comparison
from keytide.merge.engine import MergeEngine, PartitionChangePolicy
from keytide.merge.engines import compacts_by_lookup, engine_of
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import MergeOrder, order_of
from keytide.options import TableOptions, keys
from keytide.snapshot.dynamic_buckets import HashFiles
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.metadata import TableMetadata
from keytide.store import Store, is_stored_inside, store_of_file
from keytide.types import Field

T = TypeVar("T")

# -- statements ------------------------------------------------------------------------------------


# Half of a uuid identifies the statement. The other half makes the names of each task unique.
_MARK_LENGTH = len("01234567-0123-4123")


@dataclass
class Statement:
    """The names of the files of a statement. Equal names are never created twice."""

    mark: str
    is_away: bool = False
    """Whether another process may create files for it. True once it was pickled."""

    @classmethod
    def new(cls) -> Statement:
        """A statement that no file belongs to yet."""
        return cls(new_uuid()[:_MARK_LENGTH])

    def __getstate__(self) -> dict[str, Any]:
        self.is_away = True
        return self.__dict__

    def names(self) -> FileNames:
        """New names for one writer."""
        return FileNames(self.mark + new_uuid()[_MARK_LENGTH:])

    def has_named(self, path: str) -> bool:
        """Whether a file was created for this statement, by any task in any process."""
        return self.mark in path.rpartition("/")[2]


# -- data files ------------------------------------------------------------------------------------


class DataFiles(Protocol):
    """Describes the data files of a table. Picklable."""

    @property
    def reader(self) -> Callable[..., FileReader]:
        """The class that reads one file.

        If the table stores versions, it returns them in key order, at most one version per key. It
        also returns their sequence numbers and kinds, whether these are stored or not.
        """

    @property
    def are_plain(self) -> bool:
        """Whether readers of the plain file format find the same rows as `reader` returns."""

    @property
    def why_not_writable(self) -> str | None:
        """Why this release must not add or remove files. None if it can."""

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> DataError | None:
        """The error to raise if a file of one of these snapshots is missing.

        `reason` says which file it is. None if nothing explains the missing file.
        """


@dataclass(frozen=True)
class OwnFiles:
    """Files in the table's own format. This is the default."""

    reader: ClassVar[type[FileReader]] = FileReader
    are_plain: ClassVar[bool] = True
    why_not_writable: ClassVar[str | None] = None

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> DataError | None:
        """See `DataFiles`: the expiry of a snapshot deletes files."""
        # Those snapshots that have expired and are not kept by a tag.
        gone = [n for n in snapshot_ids if not store.exists(paths.snapshot_path(n))]
        metadata = TableMetadata(store, table)
        expired = [number for number in gone if not _is_tagged(metadata, number)]
        return expired_error(table, expired, reason) if expired else None


OWN_FILES = OwnFiles()


def expired_error(table: str, snapshot_ids: Sequence[int], reason: str) -> DataError:
    """The error to raise if one of these snapshots expired before it was read."""
    which = " or ".join(map(str, snapshot_ids))
    return DataError(
        f"table {table}: snapshot {which} expired before it was read: {reason}. Read again from "
        "the latest snapshot, with a new DataFrame if you use Spark. If reads take longer, "
        f"increase '{keys.SNAPSHOT_TIME_RETAINED}', or read from a tag, which keeps its files"
    )


def _is_tagged(metadata: TableMetadata, snapshot_id: int) -> bool:
    for name in metadata.store.list_names(paths.tag_dir()):
        tag = paths.parse_tag_name(name)
        try:
            if tag is not None and metadata.tag(tag).id == snapshot_id:
                return True
        except NotFoundError:  # deleted in the meantime
            continue
    return False


# -- the view --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableView:
    """A table at one schema: where it is stored and how to read its files.

    - `store` is rooted at the table.
    - `schema` is the schema that rows are read and written in.
    - `schemas` are those that stored files refer to, by id.
    - `functions` are user-defined merge functions.
    - `files` describes the data files.
    - `statement` is the statement that new files are created for, if any.
    """

    store: Store
    name: str
    schema: TableSchema
    schemas: Mapping[int, TableSchema]
    options: TableOptions
    functions: Mapping[str, MergeFunction] = field(default_factory=dict)
    files: DataFiles = OWN_FILES
    statement: Statement | None = field(default=None, compare=False)

    def in_statement(self, statement: Statement) -> TableView:
        """The same table, whose new files belong to a statement."""
        view = copy(self)  # keeps what is already computed
        object.__setattr__(view, "statement", statement)
        return view

    def new_names(self) -> paths.FileNames:
        """Names for the files of one writer."""
        return paths.FileNames() if self.statement is None else self.statement.names()

    @property
    def kind(self) -> TableKind:
        """The kind of the table, with or without a primary key."""
        return kind_of(self.schema)

    @property
    def has_dynamic_buckets(self) -> bool:
        """Whether an index says which bucket a key is in."""
        return self.kind.has_key and self.options.bucket == -1

    @property
    def postpones_buckets(self) -> bool:
        """Whether each partition has its own number of buckets, chosen when it is first written."""
        return self.kind.has_key and self.options.bucket == paths.POSTPONE_BUCKET

    @property
    def moves_keys(self) -> bool:
        """Whether a key may arrive in any partition, but must exist in only one."""
        return self.has_dynamic_buckets and self.schema.is_cross_partition

    @property
    def merging(self) -> TableView:
        """The same table, for reads that include what is not compacted yet."""
        if self.options.merges_on_read:
            return self
        options = replace(self.options, deletion_vectors_merge_on_read=True)
        return replace(self, options=options)

    @property
    def needs_tombstones(self) -> bool:
        """Whether a stored delete still matters after all versions before it are gone.

        It matters to a late version. If a key never leaves the first partition that it was in, the
        delete also says which partition the deleted key stays in.
        """
        stays = self.moves_keys and self.engine.on_partition_change is PartitionChangePolicy.STAYS
        return stays or self.engine.has_late_versions

    @property
    def bucket_fields(self) -> tuple[Field, ...]:
        """The columns whose hash determines the bucket, or the index entry with dynamic buckets."""
        return self.schema.select(self.options.bucket_key or self.schema.trimmed_primary_keys)

    @property
    def bucket_function(self) -> str:
        """The hash function of buckets. An index of dynamic buckets supports only one."""
        return "default" if self.has_dynamic_buckets else self.options.bucket_function

    @cached_property
    def order(self) -> MergeOrder:
        """The merge order of the table."""
        return order_of(self.schema.trimmed_primary_keys, self.schema.fields, self.options)

    @property
    def comparison(self) -> Comparison:
        """How rows of a key are compared if a key index says which one is current."""
        fields = self.schema.select(self.options.sequence_field)
        return Comparison(fields, self.options.sequence_sort_order == "descending")

    @property
    def lateness_max(self) -> int | None:
        """The distance behind the latest row of a bucket from which a row always counts as late, in
        units of `comparison`. None for no limit.
        """
        ages = (self.options.metadata_ttl, self.options.deleted_keys_ttl)
        return min((ticks_of(a, self.comparison) for a in ages if a is not None), default=None)

    @property
    def deletes_kept(self) -> int | None:
        """The distance behind the latest row after which a delete may be forgotten.

        None for never.
        """
        age = self.options.deleted_keys_ttl
        return None if age is None else ticks_of(age, self.comparison)

    @cached_property
    def engine(self) -> MergeEngine:
        """The merge engine of the table. Raises `UnsupportedError` if it is not implemented."""
        return self.engine_in(self.order)

    def engine_in(self, order: MergeOrder) -> MergeEngine:
        """The engine for versions in another order, such as one that distinguishes buckets."""
        return engine_of(
            order,
            self.schema.fields,
            self.options,
            partition_keys=self.schema.partition_keys,
            functions=self.functions,
        )

    @cached_property
    def creates_lookup_files(self) -> bool:
        """Whether lookup files are created for written files: compactions look up by keys alone."""
        # With deletion vectors, compactions also need the positions of rows, which are unknown in
        # memory.
        options = self.options
        is_looked_up = self.kind.keeps_versions and compacts_by_lookup(options)
        return is_looked_up and not options.deletion_vectors_enabled and not options.write_only

    def defaults(self, columns: Iterable[str]) -> dict[str, pa.Scalar]:
        """The values that replace NULL, for those columns that have a default."""
        if not self.options.by_columns(keys.DEFAULT_VALUE):
            return {}
        wanted = frozenset(columns)
        every = read_defaults(self.schema, self.options)
        return {name: value for name, value in every.items() if name in wanted}

    @contextmanager
    def naming_table(self) -> Iterator[None]:
        """A block whose merge errors name the table."""
        try:
            yield
        except (InvalidError, SetupError) as error:
            raise type(error)(f"table {self.name}: {error}") from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block whose merge errors name the table and say what can still be read."""
        try:
            with self.naming_table():
                yield
        except InvalidError as error:
            raise type(error)(f"{error}. What works: {self.engine.way_out}") from error

    def bucket_directory(self, partition: bytes, bucket: int) -> str:
        """The directory of a bucket's files, relative to the table."""
        partition_directory = _partition_directory(
            partition,
            self.schema.partition_fields(),
            self.options.partition_legacy_name,
            self.options.partition_default_name,
        )
        return paths.bucket_dir(partition_directory, bucket, self.options.path_directory or "")

    def data_file(self, entry: ManifestEntry) -> tuple[Store, str]:
        """The store that contains a data file, and its path there.

        Usually the table's own store. Raises `DataError` for a file outside the table where none of
        its schemas has allowed data files.
        """
        external = entry.file.external_path
        if external is None:
            return self.store, self.file_path(entry)
        if not any(is_stored_inside(external, root) for root in self._external_roots):
            raise DataError(
                f"table {self.name}: data file {entry.file.file_name} is recorded at {external}, "
                f"where '{keys.EXTERNAL_PATHS}' of the table allows no files (allowed: "
                f"{', '.join(self._external_roots) or 'none'}). Restore the manifest, or add the "
                "place to the option with the engine that wrote the file"
            )
        return store_of_file(external, main_store(self.store))

    @cached_property
    def _external_roots(self) -> tuple[str, ...]:
        """The folders outside the table for data files, by any of its schemas."""
        schemas = (*self.schemas.values(), self.schema)
        stored = (each.options.get(keys.EXTERNAL_PATHS, "") for each in schemas)
        roots = (root.strip() for text in stored for root in text.split(","))
        return tuple(dict.fromkeys(root for root in roots if root))

    def file_path(self, entry: ManifestEntry) -> str:
        """The path of a data file in the table's own store, relative to the table.

        Raises `UnsupportedError` for a file outside the table.
        """
        if entry.file.external_path is not None:
            raise UnsupportedError(
                f"table {self.name}: data file {entry.file.external_path} is outside the table. "
                "This release can read such files but not change them; use the engine that wrote "
                "the file"
            )
        directory = self.bucket_directory(entry.partition, entry.bucket)
        return paths.join(directory, entry.file.file_name)

    def shown_path(self, entry: ManifestEntry) -> str:
        """The location of a data file in messages: its URI if it is outside the table."""
        return entry.file.external_path or self.file_path(entry)

    def stored_paths(self, entry: ManifestEntry) -> list[str]:
        """The paths of a data file and of its extra files.

        Raises the same errors as `file_path`.
        """
        path = self.file_path(entry)
        directory = path.rsplit("/", 1)[0]
        return [path, *(paths.join(directory, name) for name in entry.file.extra_files)]


@lru_cache(maxsize=65_536)
def _partition_directory(
    partition: bytes, fields: tuple[Field, ...], legacy: bool, default_name: str
) -> str:
    if not fields:
        return ""
    columns = decode_rows([partition], [f.type for f in fields])
    return partition_paths(columns, fields, legacy=legacy, default_name=default_name)[0]


# -- the state -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableState:
    """Everything that reads and writes of one snapshot need. Immutable and picklable.

    - `view` is the table at the schema to read or write with.
    - `live` are the files of the snapshot.
    - `vector_files` are the index files that mark rows as dead.
    - `key_files` are the index files that say where the current row of each key is.
    - `hash_files` are the index files that map the keys of dynamic buckets to buckets, for writers.
    """

    view: TableView
    live: LiveFiles
    vector_files: tuple[IndexFile, ...] = ()
    hash_files: HashFiles = field(default_factory=dict)
    key_files: tuple[IndexFile, ...] = ()

    def once(self, make: Callable[[TableState], T]) -> T:
        """What `make` returns for this state. It is called once. Not pickled."""
        made = vars(self).setdefault("_made", {})
        if make not in made:
            made[make] = make(self)
        value: T = made[make]
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_made"}

    @property
    def merging(self) -> TableState:
        """The same state, for reads that include what is not compacted yet."""
        return replace(self, view=self.view.merging)

    def in_statement(self, statement: Statement) -> TableState:
        """The same state, on which a statement is based."""
        return replace(self, view=self.view.in_statement(statement))

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot. None if nothing was ever written."""
        return self.live.snapshot


# -- schemas of stored files -----------------------------------------------------------------------


class Schemas(dict[int, TableSchema]):
    """Schemas by id. A missing id raises `DataError`."""

    def __init__(self, table: str, found: Mapping[int, TableSchema]) -> None:
        super().__init__(found)
        self.table = table

    def __reduce__(self) -> tuple[type[Schemas], tuple[str, dict[int, TableSchema]]]:
        return Schemas, (self.table, dict(self))

    def __missing__(self, schema_id: int) -> NoReturn:
        raise DataError(
            f"table {self.table}: a data file was written with schema {schema_id}, but the "
            f"latest known schema is {max(self, default=-1)}: {paths.schema_path(schema_id)} or "
            "the manifest of the file is damaged. Call verify() to find it, and restore it from "
            "a backup"
        )
