"""Options of the data source: names of several formats, one meaning each, contradictions refused.

What they ask for is looked at here without Spark, which hands them on as they are.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from keytide.changes.follower import Start
from keytide.spark.columns import spark_schema
from keytide.spark.data_source import ChangeStream, ChangeStreamReader
from keytide.spark.option_rules import SECTIONS, page
from keytide.spark.runner import load_task
from keytide.spark.source_options import SourceOptions

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> kt.Table:
    """Snapshot 1 has key 1, snapshot 2 adds key 2 and is tagged, snapshot 3 changes key 1."""
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    made = lake.create_table("t", SCHEMA, ["id"], options={"bucket": "1", "write-only": "true"})
    made.write([{"id": 1, "v": "a"}])
    made.write([{"id": 2, "v": "b"}])
    made.create_tag("two", 2)
    made.write([{"id": 1, "v": "c"}])
    times = [s.time_millis for s in made.snapshots()]
    assert times == sorted(times)
    return made


def parsed(table: kt.Table, options: dict[str, str]) -> SourceOptions:
    return SourceOptions.parse({"path": table.uri, **moments(table, options)})


def moments(table: kt.Table, options: dict[str, str]) -> dict[str, str]:
    """Options in which {2} stands for the time of snapshot 2, in milliseconds."""
    times = ["", *(str(s.time_millis) for s in table.snapshots())]
    return {key: value.format(*times) for key, value in options.items()}


def rows(table: kt.Table, options: dict[str, str]) -> str:
    found = parsed(table, options).scan().to_pylist()
    return " ".join(sorted(f"{row['id']}{row['v']}" for row in found))


def changes(table: kt.Table, options: dict[str, str]) -> str:
    found = parsed(table, options).changes().to_pylist()
    return " ".join(sorted(f"{row['_row_kind']}{row['id']}{row['v']}" for row in found))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "1c 2b"),
        ({"snapshot-id": "1"}, "1a"),
        ({"VERSIONASOF": "1"}, "1a"),
        ({"versionAsOf": "1", "snapshot-id": "1"}, "1a"),
        ({"scan.snapshot-id": "2"}, "1a 2b"),
        ({"scan.mode": "from-snapshot", "scan.snapshot-id": "2"}, "1a 2b"),
        ({"scan.mode": "latest"}, "1c 2b"),
        ({"tag": "two"}, "1a 2b"),
        ({"scan.tag-name": "two"}, "1a 2b"),
        ({"scan.version": "two"}, "1a 2b"),
        ({"scan.version": "1"}, "1a"),
        ({"columns": "v, id", "where": "id = 2"}, "2b"),
    ],
)
def test_names_of_a_snapshot(table: kt.Table, options: dict[str, str], expected: str) -> None:
    assert rows(table, options) == expected


def test_times_in_milliseconds_and_in_words(table: kt.Table) -> None:
    newest = table.snapshots()[-1].time_millis
    moment = datetime.fromtimestamp(newest / 1000 + 1, timezone.utc)
    ways = [
        {"as-of": str(newest)},
        {"timestampAsOf": moment.isoformat()},
        {"scan.timestamp-millis": str(newest), "scan.mode": "from-timestamp"},
        {"scan.timestamp": f"{moment:%Y-%m-%d %H:%M:%S.%f}"},
    ]
    assert {rows(table, options) for options in ways} == {"1c 2b"}
    with pytest.raises(kt.NotFoundError, match="no snapshot at or before"):
        rows(table, {"timestampAsOf": "2001-01-01"})


FEED = {"readChangeFeed": "true"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({**FEED, "startingVersion": "0"}, "+I1c +I2b"),
        ({**FEED, "startingVersion": "2"}, "+I2b +U1c -U1a"),
        ({**FEED, "startingVersion": "2", "endingVersion": "2"}, "+I2b"),
        ({**FEED, "start": "2"}, "+U1c -U1a"),
        ({**FEED, "start": "two", "columns": "id,v"}, "+U1c -U1a"),
        ({**FEED, "start-snapshot-id": "1", "end-snapshot-id": "2"}, "+I2b"),
        ({**FEED, "startingTimestamp": "{1}", "endingTimestamp": "{3}"}, "+I1c +I2b"),
        ({"incremental-between": "1,two"}, "+I2b"),
        ({"incremental-between": "two,3", "scan.mode": "incremental"}, "+U1c -U1a"),
        ({"incremental-between": "0,3", "mode": "delta"}, "+I1a +I1c +I2b"),
        ({"incremental-between": "0,3", "incremental-between-scan-mode": "auto"},
         "+I1a +I1c +I2b"),
        ({"incremental-between-timestamp": "{3},{3}"}, ""),
    ],
)  # fmt: skip
def test_names_of_changes(table: kt.Table, options: dict[str, str], expected: str) -> None:
    assert parsed(table, options).tells_kinds
    assert changes(table, options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Start(3, is_full=True)),
        ({"scan.mode": "latest-full"}, Start(3, is_full=True)),
        ({"scan.mode": "latest"}, Start(3)),
        ({"startingVersion": "latest"}, Start(3)),
        ({"startingVersion": "3"}, Start(2)),
        ({"scan.snapshot-id": "3", "scan.mode": "from-snapshot"}, Start(2)),
        ({"start": "3"}, Start(3)),
        ({"as-of": "{3}"}, Start(3)),
        ({"startingTimestamp": "{1}"}, Start(0)),
        ({"scan.timestamp-millis": "{1}"}, Start(0)),
    ],
)
def test_beginnings_of_a_stream(table: kt.Table, options: dict[str, str], expected: Start) -> None:
    stream = ChangeStream.of(parsed(table, {**options, "keytide-stream": "true"}))
    begins = stream.begin()
    assert replace(begins, commit=None) == expected
    known = {each.id: each.identity for each in table.snapshots()}
    assert begins.commit == known.get(begins.after_id)


ONE_OF_TWO = [
    ({"snapshot-id": "1", "tag": "two"}, "'snapshot-id' and 'tag' each say which snapshot is read"),
    ({"versionAsOf": "1", "timestampAsOf": "2030-01-01"}, "'versionAsOf' and 'timestampAsOf' each"),
    (
        {"versionAsOf": "1", "snapshot-id": "2"},
        "are the same option with different values, 1 and 2",
    ),
    ({"scan.mode": "latest", "scan.snapshot-id": "1"}, "'latest', but 'scan.snapshot-id' selects"),
    ({"scan.mode": "from-snapshot"}, "requires 'scan.snapshot-id'"),
    (
        {"scan.mode": "compacted-full"},
        "'compacted-full' is not supported; expected one of 'latest-full'",
    ),
    ({"scan.mode": "newest"}, "option 'scan.mode' is 'newest'; expected one of default, latest-f"),
    ({"consumer": "c"}, "this reads one snapshot, which does not support 'consumer'"),
    ({"startingVersion": "1"}, "this reads one snapshot, which does not support 'startingVersion'"),
    ({"version": "1"}, "no option 'version'; did you mean 'snapshot-id'?"),
    ({"snapshot_id": "1"}, "no option 'snapshot_id'; did you mean 'snapshot-id'"),
    ({"maxFilesPerTrigger": "1"}, "did you mean 'max-rows-per-trigger'?"),
]


@pytest.mark.parametrize(("options", "message"), ONE_OF_TWO)
def test_what_contradicts_or_means_nothing_is_refused_in_a_line(
    table: kt.Table, options: dict[str, str], message: str
) -> None:
    with pytest.raises((kt.InvalidError, kt.UnsupportedError)) as caught:
        rows(table, options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FEED, "say where changes start: 'startingVersion'"),
        ({**FEED, "start": "full"}, "say where changes start"),
        ({**FEED, "startingVersion": "1", "start": "0"}, "each say where changes start"),
        ({"incremental-between": "1,2", "end": "3"}, "each say where changes end"),
        ({"incremental-between": "1"}, "'1'; expected two values separated by a comma"),
        (
            {**FEED, "versionAsOf": "1"},
            "reads changes between two snapshots, which does not support",
        ),
    ],
)
def test_changes_that_are_not_said_are_refused(
    table: kt.Table, options: dict[str, str], message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        changes(table, options)


def test_stream_without_kinds_gives_new_rows_and_stops_at_a_change(table: kt.Table) -> None:
    new = ChangeStreamReader(parsed(table, {"start": "1"}), spark_schema(SCHEMA))
    (task,) = (load_task(each.value) for each in new.partitions({"told": 1}, {"told": 2}))
    rows = pa.Table.from_batches(task.batches())
    assert rows.to_pylist() == [{"id": 2, "v": "b"}]
    (task,) = (load_task(each.value) for each in new.partitions({"told": 2}, {"told": 3}))
    with pytest.raises(kt.UnsupportedError, match=r"option\('readChangeFeed', 'true'\)"):
        list(task.batches())


def test_table_of_sparks_catalog_is_refused_with_the_way_that_works(table: kt.Table) -> None:
    with pytest.raises(kt.UnsupportedError, match="CREATE TEMPORARY VIEW name USING keytide"):
        SourceOptions.parse({"owner": "me", "provider": "keytide", "path": table.uri})
    with pytest.raises(kt.InvalidError, match="created with CREATE TABLE or saveAsTable have none"):
        SourceOptions.parse({})


def test_frame_of_changes_stays_with_what_was_newest(table: kt.Table) -> None:
    options = parsed(table, {**FEED, "startingVersion": "1"})
    settled = options.fixed_to(options.columns_of_changes())
    branch = table.create_branch("grown")
    assert settled.changes().count() == 2
    branch.write([{"id": 3, "v": "z"}])
    grown = parsed(table, {**FEED, "startingVersion": "1", "branch": "grown"})
    assert grown.changes().count() == 3


def test_every_option_is_on_the_page_and_every_name_is_there_once() -> None:
    rows_of_table = [option for options in SECTIONS.values() for option in options]
    names = [name.lower() for option in rows_of_table for name in option.names]
    assert len(names) == len(set(names))
    assert [option.key for option in rows_of_table if f"`{option.key}`" not in page()] == []
    text = (Path(__file__).parents[2] / "docs/spark.md").read_text()
    assert page() in text, "put what python -m keytide.spark.option_rules prints into docs/spark.md"
