"""Files whose rows are exactly what readers see, so that other Parquet readers can read them.

The reader must leave out rows of kind -U and -D, and the rows that a deletion vector marks. The
columns are those of the table, matched by field id, with the names and types that they had when the
file was written. Metadata alone decides which files are plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from keytide.base.dataclass import dataclass, fields, replace
from keytide.predicate.predicate import columns_of
from keytide.read.scan import ReadTask, Scan
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableView
from keytide.types import (
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
)

TypesRead: TypeAlias = "Callable[[AtomicType], bool]"
"""Whether another reader reads a stored scalar type in the same way as Keytide."""


@dataclass(frozen=True)
class PlainShape:
    """How to read a group of plain files.

    Files with the same schema are in one group. `has_retracts` says that they may contain rows of
    kind -U or -D, and `has_dead_rows` that deletion vectors mark rows in them.
    """

    schema_id: int
    has_retracts: bool
    has_dead_rows: bool


@dataclass(frozen=True)
class PlainSplit:
    """The plain files of a scan, by shape, and the tasks that read all other files."""

    plain: dict[PlainShape, list[PlannedFile]]
    tasks: list[ReadTask]


@dataclass(frozen=True)
class OtherRows(Scan):
    """The rows of a scan that are not in its plain files.

    This stays correct with an additional condition. A condition only leaves out files, so a plain
    file cannot become non-plain.
    """

    plain: frozenset[str] = frozenset()
    """The names of the plain files."""

    @classmethod
    def of(cls, scan: Scan, split: PlainSplit) -> OtherRows:
        """The rows of the tasks in a split of the scan."""
        names = (file.meta.file_name for files in split.plain.values() for file in files)
        members = {member.name: getattr(scan, member.name) for member in fields(Scan)}
        return cls(**members, plain=frozenset(names))

    def tasks(self) -> list[ReadTask]:
        """See `Scan.tasks`."""
        tasks = []
        for task in super().tasks():
            left = tuple(
                section
                for section in task.bucket.sections
                if not all(file.meta.file_name in self.plain for file in section.files)
            )
            if left:
                tasks.append(replace(task, bucket=replace(task.bucket, sections=left)))
        return tasks


def split_plain(scan: Scan, reads: TypesRead, takes: Callable[[PlannedFile], bool]) -> PlainSplit:
    """Split a scan for a Parquet reader that supports the given types and finds the given files.

    Raises the same errors as `Scan.tasks`.
    """
    is_plain = _plain_check(scan, reads)
    plain: dict[PlainShape, list[PlannedFile]] = {}
    tasks: list[ReadTask] = []
    for task in split_tasks(scan):
        (section,) = task.bucket.sections
        files = section.files
        if section.needs_merge or not all(is_plain(file) and takes(file) for file in files):
            tasks.append(task)
            continue
        for file in files:
            has_dead_rows = file.dead_rows is not None
            shape = PlainShape(file.meta.schema_id, file.may_retract, has_dead_rows)
            plain.setdefault(shape, []).append(file)
    return PlainSplit(plain, tasks)


def split_tasks(scan: Scan) -> list[ReadTask]:
    """A scan as tasks of one section each."""
    return [
        replace(task, bucket=replace(task.bucket, sections=(section,)))
        for task in scan.tasks()
        for section in task.bucket.sections
    ]


def stored_fields(
    view: TableView, shape: PlainShape, fields: Sequence[Field]
) -> list[Field | None]:
    """The stored field for each column in files of a shape. None if they lack the column."""
    by_id = {f.id: f for f in view.schemas[shape.schema_id].fields}
    return [by_id.get(f.id) for f in fields]


def local_file(view: TableView, file: PlannedFile) -> Path | None:
    """The path of the file on local disk.

    None for a remote file: its cached copy may go away at any time.
    """
    store, path = view.data_file(file.entry)
    return store.uncached().local_path(path)


def has_floats(type_: DataType) -> bool:
    """Whether values are, or contain, floating-point numbers, which may be NaN."""
    return not reads_type(type_, lambda part: part.root not in ("FLOAT", "DOUBLE"))


def reads_type(type_: DataType, reads: TypesRead) -> bool:
    """Whether a reader supports all parts of a stored type."""
    if isinstance(type_, AtomicType):
        return not type_.is_nested and reads(type_)
    if isinstance(type_, ArrayType | MultisetType):
        return reads_type(type_.element, reads)
    if isinstance(type_, MapType):
        return reads_type(type_.key, reads) and reads_type(type_.value, reads)
    return isinstance(type_, RowType) and all(reads_type(f.type, reads) for f in type_.fields)


def _plain_check(scan: Scan, reads: TypesRead) -> Callable[[PlannedFile], bool]:
    """A function that says whether a file of the scan is plain for a reader."""
    view = scan.view
    read = view.schema.select(dict.fromkeys((*scan.columns, *columns_of(scan.predicate))))
    if not view.files.are_plain or view.defaults(f.name for f in read):
        return lambda file: False
    by_schema: dict[int, bool] = {}

    def check(file: PlannedFile) -> bool:
        schema_id = file.meta.schema_id
        if schema_id not in by_schema:
            stored = view.schemas[schema_id]
            if len({name.lower() for name in stored.names}) < len(stored.names):
                by_schema[schema_id] = False  # SQL engines treat names as case-insensitive
            else:
                old = {f.id: f for f in stored.fields}
                by_schema[schema_id] = all(
                    f.id not in old or _reads_as(old[f.id].type, f.type, reads) for f in read
                )
        return (
            by_schema[schema_id]
            and file.places is None
            and view.data_file(file.entry)[1].endswith(".parquet")
        )

    return check


def _reads_as(old: DataType, new: DataType, reads: TypesRead) -> bool:
    """Whether a reader reads the stored type and casts it to the new one as Keytide does."""
    if not reads_type(old, reads) or not reads_type(new, reads):
        return False
    if isinstance(old, AtomicType) and isinstance(new, AtomicType):
        same = old.with_nullable(True) == new.with_nullable(True)
        return same or new.root in _WIDENS_TO.get(old.root, ())
    return bool(old.with_nullable(True) == new.with_nullable(True))


_WIDENS_TO = {
    "TINYINT": ("SMALLINT", "INT", "BIGINT"),
    "SMALLINT": ("INT", "BIGINT"),
    "INT": ("BIGINT",),
    "FLOAT": ("DOUBLE",),
    "CHAR": ("VARCHAR",),
    "VARCHAR": ("VARCHAR",),
    "BINARY": ("VARBINARY",),
    "VARBINARY": ("VARBINARY",),
}
