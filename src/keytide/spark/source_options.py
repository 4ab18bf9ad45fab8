"""The options of the data source, parsed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from keytide.errors import InvalidError, NotFoundError
from keytide.format.snapshot import Snapshot
from keytide.options import keys
from keytide.store import CacheFolder, takes_options
from keytide.table.caching import cache_folder
from keytide.table.catalog import open_stored
from keytide.table.conditions.condition import predicate_of
from keytide.table.read.scan import Scan
from keytide.table.scans import narrowed_scan, scan_table, which_rows, whole_scan
from keytide.table.state.data_files import expired_error
from keytide.table.state.stored import StoredTable

__all__ = ["STREAM", "SourceOptions"]

STREAM = "keytide-stream"
"""The option that tells a stream; `register` has Spark set it."""

MERGE_SCHEMA = "merge-schema"
CACHE, CACHE_BYTES = _CACHE_NAMES = "cache", "cache-bytes"

_SPARK_OPTIONS = ("path", "checkpointlocation", "queryname", "outputmode")


@dataclass(frozen=True)
class Settled:
    """A schema and a snapshot that were the newest at one moment; None where there was none."""

    schema_id: int
    snapshot_id: int | None


@dataclass(frozen=True)
class SourceOptions:
    """The options of one load, save or stream, parsed."""

    path: str
    columns: tuple[str, ...] | None = None
    where: str | None = None
    snapshot_id: int | None = None
    tag: str | None = None
    as_of: str | int | None = None
    skip_upsert: bool | None = None
    skip_upsert_delete: bool | None = None
    is_stream: bool = False
    start: str | int | None = None
    mode: str | None = None
    rows_max: int | None = None
    consumer: str | None = None
    branch: str | None = None
    merge_schema: bool | None = None
    cache: CacheFolder | None = None
    store: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    settled: Settled | None = None
    """What was the newest when a DataFrame was made; None where none is made yet."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options. Raises `InvalidError` for a missing path or a wrong number."""
        rest = {_NAMED_AS_ELSEWHERE.get(n.lower(), n.lower()): v for n, v in options.items()}
        path = rest.get("path")
        if path is None:
            raise InvalidError(
                "format 'keytide' needs the path of a table: load(path), save(path) or start(path)"
            )
        for key in _SPARK_OPTIONS:
            rest.pop(key, None)
        columns, snapshot_id = rest.pop("columns", None), rest.pop("snapshot-id", None)
        as_of, start = rest.pop("as-of", None), rest.pop("start", None)
        rows_max = rest.pop("max-rows-per-trigger", None)
        return cls(
            path=path,
            columns=None if columns is None else tuple(c.strip() for c in columns.split(",")),
            where=rest.pop("where", None),
            snapshot_id=None if snapshot_id is None else _whole("snapshot-id", snapshot_id),
            tag=rest.pop("tag", None),
            as_of=int(as_of) if as_of is not None and as_of.isdecimal() else as_of,
            skip_upsert=_said("skip-upsert", rest),
            skip_upsert_delete=_said("skip-upsert-delete", rest),
            is_stream=rest.pop(STREAM, None) is not None,
            start=int(start) if start is not None and start.isdecimal() else start,
            mode=rest.pop("mode", None),
            rows_max=None if rows_max is None else _whole("max-rows-per-trigger", rows_max),
            consumer=rest.pop("consumer", None),
            branch=rest.pop(keys.BRANCH, None),
            merge_schema=_said(MERGE_SCHEMA, rest),
            cache=cache_folder(rest.pop(CACHE, None), rest.pop(CACHE_BYTES, None), _CACHE_NAMES),
            store=_store_options(path, rest),
        )

    def table(self) -> StoredTable:
        """Open the table, in its branch. Raises `NotFoundError` when there is none at the path."""
        return open_stored(self.path, dict(self.store), self.branch, self.cache)

    def table_to_write(self) -> StoredTable:
        """Open the table to write. Raises `InvalidError` for options that only reads have."""
        return self._table_for(
            "say what is read, and this is a write", {**self._of_scans, **self._of_streams}
        )

    def table_to_follow(self) -> StoredTable:
        """Open the table. Raises `InvalidError` for options of reads of one snapshot."""
        self._refuse_those_of_writes()
        given = {**self._of_scans, "columns": None, "as-of": None}
        return self._table_for("are for reads of one snapshot, and this is a stream", given)

    def columns_of_changes(self) -> pa.Schema:
        """The columns of the rows that a stream tells of. Raises `NotFoundError` as a scan."""
        return scan_table(self.table(), self.columns).schema

    def scan(self, columns: Sequence[str] | None = None) -> Scan:
        """The scan that the options describe, of other columns if given. Raises as `Table.scan`."""
        self._refuse_those_of_writes()
        table = self._table_for("are for streams, and this reads one snapshot", self._of_streams)
        wanted = self.columns if columns is None else columns
        if self.settled is None or self.travels:
            return scan_table(
                table, wanted, self.where, self.snapshot_id, self.tag, self.as_of, *self._skipped
            )
        schema = table.metadata.schema(self.settled.schema_id)
        state = table.state(schema, self._settled(table, self.settled))
        fields, where = schema.fields, self.where
        predicate = None if where is None else predicate_of(where, fields, table.name)
        which = which_rows(schema, table.name, *self._skipped)
        return narrowed_scan(replace(whole_scan(state), which=which), wanted, predicate)

    def _settled(self, table: StoredTable, seen: Settled) -> Snapshot | None:
        if seen.snapshot_id is None:
            return None
        try:
            return table.metadata.snapshot(seen.snapshot_id)
        except NotFoundError as error:
            raise expired_error(table.name, [seen.snapshot_id], str(error)) from error

    def settled_at(self, scan: Scan) -> SourceOptions:
        """The same options for later scans, which will see the schema and the snapshot of one."""
        snapshot = scan.snapshot
        seen = Settled(scan.view.schema.id, None if snapshot is None else snapshot.id)
        return replace(self, settled=seen)

    @property
    def _skipped(self) -> tuple[bool, bool]:
        return bool(self.skip_upsert), bool(self.skip_upsert_delete)

    @property
    def _of_scans(self) -> dict[str, Any]:
        return {
            "columns": self.columns, "where": self.where, "snapshot-id": self.snapshot_id,
            "tag": self.tag, "as-of": self.as_of, "skip-upsert": self.skip_upsert,
            "skip-upsert-delete": self.skip_upsert_delete,
        }  # fmt: skip

    @property
    def _of_streams(self) -> dict[str, Any]:
        return {
            "start": self.start, "mode": self.mode, "max-rows-per-trigger": self.rows_max,
            "consumer": self.consumer,
        }  # fmt: skip

    def _refuse_those_of_writes(self) -> None:
        if self.merge_schema is not None:
            self._table_for("says what is written, and this is a read", {MERGE_SCHEMA: True})

    def _table_for(self, purpose: str, others: Mapping[str, Any]) -> StoredTable:
        table = self.table()
        found = [name for name, value in others.items() if value is not None]
        if found:
            raise InvalidError(
                f"table {table.name}: {', '.join(map(repr, found))} {purpose}; leave them out"
            )
        return table

    @property
    def travels(self) -> bool:
        """Whether they name the snapshot to read."""
        return any(given is not None for given in (self.snapshot_id, self.tag, self.as_of))


def _store_options(path: str, rest: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What goes to the store. Raises `InvalidError` for a name that is not meant for it."""
    goes_to_store = takes_options(path)
    for name in rest:
        meant = _near(name, 0.8 if goes_to_store else 0.6)
        if goes_to_store and not meant:
            continue
        way = f"did you mean {' or '.join(map(repr, meant))}?" if meant else ""
        raise InvalidError(
            f"format 'keytide' has no option {name!r}; {way or f'it has {_SHOWN}'} Storage options "
            f"are for tables in an object store"
        )
    return tuple(rest.items())


def _near(name: str, cutoff: float) -> list[str]:
    """The options that a name may have been meant for, by its spelling or by other formats."""
    meant = _NAMED_ELSEWHERE.get(name)
    if meant is not None:
        return [meant]
    return difflib.get_close_matches(name.replace("_", "-"), _KNOWN, cutoff=cutoff)


_KNOWN = (
    "snapshot-id", "tag", "as-of", "columns", "where", "skip-upsert", "skip-upsert-delete",
    "start", "mode", "max-rows-per-trigger", "consumer", keys.BRANCH, MERGE_SCHEMA, CACHE,
    CACHE_BYTES,
)  # fmt: skip
_SHOWN = f"{', '.join(map(repr, _KNOWN))}."
_NAMED_AS_ELSEWHERE = {"mergeschema": MERGE_SCHEMA}
_NAMED_ELSEWHERE = {
    "versionasof": "snapshot-id", "version": "snapshot-id", "timestampasof": "as-of",
    "timestamp": "as-of", "startingversion": "start", "startingoffsets": "start",
    "startingtimestamp": "as-of", "select": "columns", "filter": "where",
}  # fmt: skip


def _said(option: str, rest: dict[str, str]) -> bool | None:
    value = rest.pop(option, None)
    if value is None:
        return None
    if value.lower() not in ("true", "false"):
        raise InvalidError(f"option {option!r} is {value!r}; expected true or false")
    return value.lower() == "true"


def _whole(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidError(f"option {option!r} is {value!r}; expected a whole number") from None
