"""Pages of a table: read-only views, the story of a row, streams, and tables of others.

Each page builds a view model and shows it. The story of a row says why it is what it is. External
and federated tables, attached tables, and views have no snapshots in the lake, and get pages of
their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TypeAlias

import pyarrow as pa
from starlette.responses import Response

from keytide.base.dataclass import dataclass
from keytide.base.text import is_moment, utc
from keytide.catalogs.warehouse import StoredView
from keytide.changes.change_scan import changed_rows, first_changes
from keytide.definition.kind import require_key
from keytide.dml.attachments import AttachedCatalog
from keytide.errors import InvalidError, KeytideError, NotFoundError, UnsupportedError
from keytide.feeds.kafka.offsets import stored_offsets, stored_topics
from keytide.lake.external_tables import ExternalTable, FederatedTable
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.lake import Lake
from keytide.lake.table import Table
from keytide.maintenance.history import HistoryEntry, consumers_of, entries_before
from keytide.maintenance.overviews import layout_of, timeline_of
from keytide.predicate.literals import key_of_texts
from keytide.read.why import story_of
from keytide.show.buckets import bucket_picture, levels_bar
from keytide.show.chart import timeline_picture
from keytide.show.explanations import Story
from keytide.snapshot.stored_table import PinnedTable
from keytide.sources.source import given_options
from keytide.sql.local_engine import LocalEngine
from keytide.sql.show_statements import create_statement, describe, view_description, view_statement
from keytide.ui.http import (
    TABLE_TABS,
    RequestParameters,
    Site,
    listing_of,
    page_address,
    table_address,
    version_of,
)
from keytide.ui.overview import ColumnLine, figures_of, overview_of

# -- the story of a row ----------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyColumn:
    """A column of the key, for the form."""

    name: str
    type: str


def story_of_texts(
    table: Table | ForeignTable, texts: Sequence[str], snapshot: str | None
) -> Story:
    """The story of a key that is written as strings.

    `snapshot` is an id or the name of a tag, of a foreign table a version. Raises `InvalidError`
    for what is no key, and as `Table.why`.
    """
    schema = table.table_schema
    require_key(schema, table.name, "a story of a key", "Query it with SQL")
    fields = schema.select(schema.primary_keys)
    if len(texts) != len(fields):
        raise InvalidError(
            f"the primary key of {table.name} is {', '.join(schema.primary_keys)}; found "
            f"{len(texts)} values"
        )
    key = key_of_texts(texts, fields, table.name)
    if isinstance(table, ForeignTable):
        return story_of(table.why(key, version=snapshot))
    if snapshot is None:
        return story_of(table.why(key))
    if snapshot.isdecimal():
        return story_of(table.why(key, snapshot_id=int(snapshot)))
    return story_of(table.why(key, tag=snapshot))


# -- streams ---------------------------------------------------------------------------------------


_COMMITS = 200


@dataclass(frozen=True)
class ConsumerLine:
    """A named reader: the next snapshot that it reads, and how many are left to read."""

    name: str
    next_snapshot: int
    behind: int
    time: datetime


@dataclass(frozen=True)
class TopicLine:
    """A partition of a Kafka topic, and the next offset that the table reads."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int


@dataclass(frozen=True)
class WriterLine:
    """A commit user with recent commits: how many, and the last one."""

    user: str
    operations: tuple[str, ...]
    commits: int
    rows: int
    last_snapshot: int
    last_time: datetime


@dataclass(frozen=True)
class Streams:
    """The consumers, topics and writers of a table, from its own metadata.

    `writers` have committed more than once. `once` counts the others. `commits` is the number of
    latest commits that were read.
    """

    newest_id: int | None
    time: datetime | None
    watermark: datetime | None
    consumers: tuple[ConsumerLine, ...]
    topics: tuple[TopicLine, ...]
    writers: tuple[WriterLine, ...]
    once: int
    commits: int


def streams_of(table: Table) -> Streams:
    """Readers and writers of a table, without a broker. Raises `DataError` for damaged metadata."""
    seen = table.stored.pinned()
    newest = seen.metadata.latest_snapshot()
    newest_id = 0 if newest is None else newest.id
    stored = stored_offsets(seen, stored_topics(seen))
    entries = entries_before(seen.metadata, newest_id + 1, _COMMITS)
    writers = _writers(entries)
    watermark = None if newest is None else newest.known_watermark
    return Streams(
        None if newest is None else newest.id,
        None if newest is None else utc(newest.time_millis),
        utc(watermark) if watermark is not None and is_moment(watermark) else None,
        tuple(
            ConsumerLine(
                each.name, each.next_snapshot, max(0, newest_id + 1 - each.next_snapshot), each.time
            )
            for each in consumers_of(table.metadata)
        ),
        tuple(
            TopicLine(topic, offsets.id, partition, offsets.next[partition])
            for topic, offsets in stored.items()
            for partition in sorted(offsets.next)
        ),
        tuple(each for each in writers if each.commits > 1),
        sum(each.commits == 1 for each in writers),
        len(entries),
    )


def _writers(entries: Iterable[HistoryEntry]) -> list[WriterLine]:
    """The users of some commits, the latest first."""
    by_user: dict[str, list[HistoryEntry]] = {}
    for entry in entries:
        by_user.setdefault(entry.user, []).append(entry)
    return [
        WriterLine(
            user,
            tuple(sorted({entry.operation for entry in made})),
            len(made),
            sum(entry.rows_written for entry in made),
            made[0].snapshot_id,
            made[0].time,
        )
        for user, made in by_user.items()
    ]


# -- tables and views without snapshots ------------------------------------------------------------


@dataclass(frozen=True)
class UnversionedTable:
    """A table or view without snapshots: what it is and its definition.

    `facts` are label and value. `definition` is the SQL that would define it again, None where SQL
    has no statement for that. `problem` says why the columns are unknown. `has_source` says whether
    `source_of` finds out more.
    """

    name: str
    kind: str
    facts: tuple[tuple[str, str], ...]
    columns: tuple[ColumnLine, ...]
    comment: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    definition: str | None = None
    problem: str | None = None
    has_source: bool = False


@dataclass(frozen=True)
class Source:
    """What a source has now: its version, and how many parts and stored versions of keys.

    None where the format does not know.
    """

    version: str | None
    parts: int
    rows: int | None


def unversioned_table(lake: Lake, name: str) -> UnversionedTable:
    """What is known of a view, an external or an attached table without reading its rows.

    Raises `NotFoundError` for an unknown name, and as `Lake.table`.
    """
    catalog = lake.catalog
    if catalog.find_attached(name) is not None:
        columns = tuple(_columns(describe(lake.catalog, name, extended=False)))
        attached = name.partition(".")[0].lower()
        try:
            # Keys merge the rows of a federated table, so that it can be opened.
            is_federated = isinstance(lake.table(name), FederatedTable)
        except KeytideError:
            is_federated = False
        if not is_federated:
            connector = lake.catalog.attached[attached].name
            return UnversionedTable(
                name, f"table of connector {connector}", (("Attached as", attached),), columns
            )
        table = lake.table(name)
        assert isinstance(table, FederatedTable)
        schema = table.table_schema
        facts = (("Attached as", attached), ("Format", table.format), ("Location", table.location))
        options = tuple(sorted(given_options(schema).items()))
        return UnversionedTable(
            name, "federated table", facts, columns, schema.comment, options, has_source=True
        )
    try:
        table = lake.table(name)
    except UnsupportedError:
        if (view := catalog.find_view(name)) is None:
            raise
        return _view(catalog, view, lake.allows_external_files)
    assert isinstance(table, ExternalTable)
    schema = table.table_schema
    return UnversionedTable(
        table.name,
        "external table",
        (("Format", table.format), ("Location", table.location)),
        tuple(_columns(describe(catalog, table.name, extended=False))),
        schema.comment,
        tuple(sorted(given_options(schema).items())),
        create_statement(schema, table.name),
        has_source=True,
    )


def source_of(table: ForeignTable) -> Source:
    """What is there now. Reads no rows. Raises as `ExternalScan.explain`."""
    scan = table.scan()
    explained = scan.explain()
    return Source(scan.version, explained.parts, explained.rows)


def _view(
    catalog: AttachedCatalog, view: StoredView, allows_external_files: bool
) -> UnversionedTable:
    facts = (("Names without a database are in", view.database),)
    columns: tuple[ColumnLine, ...] = ()
    problem = None
    try:
        engine = LocalEngine(allows_external_files)
        columns = tuple(_columns(view_description(catalog, engine, view, extended=False)))
    except KeytideError as error:  # such as a table of it that was dropped
        problem = str(error)
    return UnversionedTable(
        view.name, "view", facts, columns, view.comment,
        definition=view_statement(view), problem=problem,
    )  # fmt: skip


def _columns(described: pa.Table) -> Iterator[ColumnLine]:
    """The columns that DESCRIBE lists."""
    for row in described.to_pylist():
        type_ = row["type"] or ""
        is_nullable = not type_.endswith(" NOT NULL")
        yield ColumnLine(
            row["name"] or "", type_.removesuffix(" NOT NULL"), row["role"] or "", is_nullable,
            None, row["comment"],
        )  # fmt: skip


# -- pages -----------------------------------------------------------------------------------------


PageView: TypeAlias = Callable[[Site, RequestParameters], Response]

_MODES = ("diff", "delta", "changelog")

_FOREIGN_TABS = (("overview", "Overview"), ("changes", "Changes"), ("why", "Why"))


def table_of(site: Site, parameters: RequestParameters) -> Table:
    """The table that a page is about.

    Raises as `Lake.table`, and `UnsupportedError` for one whose rows another engine writes.
    """
    found = site.lake.table(parameters.table)
    if not isinstance(found, Table):
        raise UnsupportedError(
            f"table {parameters.table}: another engine writes its rows, so the lake has no "
            f"snapshots and files of it; its page is {table_address(parameters.table)}"
        )
    return found


def _tables(site: Site, parameters: RequestParameters) -> Response:
    listing = listing_of(
        site.lake,
        parameters.text("database"),
        parameters.text("search") or "",
        parameters.number("page") or 1,
    )

    def address(page: int) -> str:
        return page_address(database=listing.database, search=listing.search or None, page=page)

    return site.page("tables.html", view="tables", listing=listing, address=address)


def _overview(site: Site, parameters: RequestParameters) -> Response:
    try:
        table = table_of(site, parameters)
    except UnsupportedError:  # a view, or a table whose rows another engine writes
        outside = unversioned_table(site.lake, parameters.table)
        tabs = _FOREIGN_TABS if outside.has_source else _FOREIGN_TABS[:1]
        return site.page(
            "outside.html", table=outside.name, view="overview", tabs=tabs, outside=outside
        )
    overview = overview_of(table)
    recent = timeline_of(table.stored)
    return site.page(
        "overview.html", table=table.name, view="overview", overview=overview,
        figures=overview.figures, picture=timeline_picture(recent.entries),
    )  # fmt: skip


def _source(site: Site, parameters: RequestParameters) -> Response:
    """What an external or federated table's source has now, which may take a while."""
    table = site.lake.table(parameters.table)
    if not isinstance(table, ForeignTable):
        raise NotFoundError(
            f"table {parameters.table} is one of the lake's own, without a source elsewhere"
        )
    template = "_source.html" if parameters.text("part") else "source.html"
    return site.page(
        template, table=table.name, view="overview", tabs=_FOREIGN_TABS, source=source_of(table)
    )


def _figures(site: Site, parameters: RequestParameters) -> Response:
    """Only the numbers of the overview, for a page that updates itself."""
    table = table_of(site, parameters)
    seen = table.stored.pinned()
    state = _state(seen)
    if (same := _unchanged(parameters, state)) is not None:
        return same
    figures, picture = figures_of(seen), timeline_picture(timeline_of(table.stored).entries)
    return site.page(
        "_figures.html", headers={"ETag": state}, table=table.name, figures=figures, picture=picture
    )


def _health(site: Site, parameters: RequestParameters) -> Response:
    table = table_of(site, parameters)
    template = "_health.html" if parameters.text("part") else "health.html"
    return site.page(template, table=table.name, view="overview", diagnosis=table.doctor())


def _timeline(site: Site, parameters: RequestParameters) -> Response:
    table = table_of(site, parameters)
    timeline = timeline_of(table.stored, parameters.number("before"))
    return site.page(
        "timeline.html", table=table.name, view="timeline", timeline=timeline,
        picture=timeline_picture(timeline.entries), modes=_MODES,
    )  # fmt: skip


def _timeline_now(site: Site, parameters: RequestParameters) -> Response:
    """Only the latest page of the timeline."""
    table = table_of(site, parameters)
    state = _state(table.stored.pinned())
    if (same := _unchanged(parameters, state)) is not None:
        return same
    timeline = timeline_of(table.stored)
    return site.page(
        "_timeline.html", headers={"ETag": state}, table=table.name, timeline=timeline,
        picture=timeline_picture(timeline.entries),
    )  # fmt: skip


def _layout(site: Site, parameters: RequestParameters) -> Response:
    table = table_of(site, parameters)
    layout = layout_of(table.stored, parameters.number("page") or 1, parameters.number("bucket"))
    bars = {line.number: levels_bar(line.levels, layout.largest) for line in layout.lines}
    picture = None if layout.bucket is None else bucket_picture(layout.bucket)
    return site.page(
        "layout.html", table=table.name, view="layout", layout=layout, bars=bars, picture=picture,
        address=lambda page: table_address(table.name, "layout", page=page),
    )  # fmt: skip


def _changes(site: Site, parameters: RequestParameters) -> Response:
    table = site.lake.table(parameters.table)
    if not isinstance(table, Table):
        start, end = parameters.text("start"), parameters.text("end")
        found = None
        if start is not None:
            changes = table.changes(start, end)
            before, after = changes.versions
            found = first_changes(changes, str(before), str(after), "diff", _COMPARED)
        return site.page(
            "changes.html", table=table.name, view="changes", tabs=_FOREIGN_TABS, changes=found,
            start=start or "", end=end or "", mode="diff", modes=("diff",), newest=None,
        )  # fmt: skip
    start, end = parameters.text("start"), parameters.text("end")
    mode = parameters.text("mode") or _MODES[0]
    newest = table.metadata.latest_snapshot_id() or 0
    found = None
    if start is not None or end is not None:
        begins: int | str = 0 if start is None else version_of(start)
        last = None if end is None else version_of(end)
        found = changed_rows(table.changes(begins, last, mode), begins)
    return site.page(
        "changes.html", table=table.name, view="changes", changes=found, start=start or "",
        end=end or "", mode=mode, modes=_MODES, newest=newest,
    )  # fmt: skip


_COMPARED = "The rows of both versions were compared by key."


def _why(site: Site, parameters: RequestParameters) -> Response:
    table = site.lake.table(parameters.table)
    texts, snapshot = parameters.texts("key"), parameters.text("snapshot")
    story = story_of_texts(table, texts, snapshot) if texts else None
    schema = table.table_schema
    columns = [
        KeyColumn(f.name, f.type.with_nullable(True).sql())
        for f in schema.select(schema.primary_keys)
    ]
    given = texts if len(texts) == len(columns) else [""] * len(columns)
    return site.page(
        "why.html", table=table.name, view="why", story=story, snapshot=snapshot or "",
        columns=list(zip(columns, given, strict=True)),
        tabs=TABLE_TABS if isinstance(table, Table) else _FOREIGN_TABS,
    )  # fmt: skip


def _streams(site: Site, parameters: RequestParameters) -> Response:
    table = table_of(site, parameters)
    return site.page("streams.html", table=table.name, view="streams", streams=streams_of(table))


def _state(seen: PinnedTable) -> str:
    """A hash that changes with what is shown: the latest snapshot and schema, and the tags."""
    metadata = seen.metadata
    snapshot = metadata.latest_snapshot()
    time = None if snapshot is None else (snapshot.id, snapshot.time_millis)
    text = repr((time, metadata.newest_schema().id, metadata.tag_names()))
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'


def _unchanged(parameters: RequestParameters, state: str) -> Response | None:
    if parameters.request.headers.get("if-none-match") == state:
        return Response(status_code=304, headers={"ETag": state})
    return None


PAGES: dict[str, PageView] = {
    "/": _tables,
    "/table/{table}": _overview,
    "/table/{table}/figures": _figures,
    "/table/{table}/health": _health,
    "/table/{table}/source": _source,
    "/table/{table}/timeline": _timeline,
    "/table/{table}/timeline/now": _timeline_now,
    "/table/{table}/layout": _layout,
    "/table/{table}/changes": _changes,
    "/table/{table}/why": _why,
    "/table/{table}/streams": _streams,
}
"""The pages by address."""
