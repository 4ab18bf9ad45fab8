"""Tags that writes make by themselves, and tags whose time is over."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.definition.times import TagPeriod
from keytide.format import paths
from keytide.format.snapshot import Snapshot
from keytide.maintenance.tags import create_due_tags, create_tag_of, forget_over, source_of
from keytide.options import TableOptions
from keytide.store.faults import Fault, FaultyStore
from new_tables import empty_lake, empty_table
from table_rows import tag_ids

SCHEMA = pa.schema([("k", pa.int64())])
DAY = datetime(2026, 1, 31)
HOUR_MS = 3_600_000


def new_table(**options: str) -> kt.Table:
    given = {name.replace("_", "-", 1).replace("tag-", "tag."): v for name, v in options.items()}
    return empty_table(SCHEMA, ["k"], options=given)


def options(**given: str) -> TableOptions:
    return TableOptions.parse({f"tag.{name.replace('_', '-')}": v for name, v in given.items()})


def committed_at(*moments: datetime, watermark: bool = False) -> kt.Table:
    """A table with a snapshot of each moment, in local time; watermarks are in UTC."""
    table = empty_table(SCHEMA, ["k"], options={"write-only": "true"})
    store = table.metadata.store
    for number, moment in enumerate(moments, start=1):
        table.write([{"k": number}])
        path = paths.snapshot_path(number)
        snapshot = Snapshot.from_json(store.read(path), path)
        members: dict[str, Any] = {"time_millis": int(moment.timestamp() * 1000)}
        if watermark:
            epoch = (moment - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
            members = {"watermark": epoch}
        values = {name: getattr(snapshot, name) for name in Snapshot.__slots__}
        store.put(path, Snapshot(**{**values, **members}).to_json())
    return table


def at(day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute)


# -- periods ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name", "begin"),
    [
        ({}, "2026-01-30", at(30)),
        ({"period_formatter": "without_dashes"}, "20260130", at(30)),
        ({"creation_period": "hourly"}, "2026-01-31 22", at(31, 22)),
        (
            {"creation_period": "hourly", "period_formatter": "without_dashes"},
            "20260131 22",
            at(31, 22),
        ),
        (
            {"creation_period": "hourly", "period_formatter": "without_dashes_and_spaces"},
            "2026013122",
            at(31, 22),
        ),
        ({"creation_period": "two-hours"}, "2026-01-31 20", at(31, 20)),
        ({"creation_period_duration": "30 min"}, "202601312230", at(31, 22, 30)),
    ],
)
def test_tag_is_named_after_the_period_that_has_just_ended(
    given: dict[str, str], name: str, begin: datetime
) -> None:
    period = TagPeriod.of(options(**given))
    assert period.last_ended(datetime(2026, 1, 31, 23, 15)) == begin
    assert (period.name_of(begin), period.begin_of(name)) == (name, begin)


@pytest.mark.parametrize(
    "name", ["", "x", "2026-1-31", "2026-01-31 10", "2026-02-30", " 2026-01-31", "20260131"]
)
def test_other_names_are_none_of_a_period(name: str) -> None:
    assert TagPeriod.of(options()).begin_of(name) is None


@given(moment=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)),
       minutes=st.integers(1, 3000))  # fmt: skip
def test_every_moment_is_in_one_period(moment: datetime, minutes: int) -> None:
    period = TagPeriod.of(options(creation_period_duration=f"{minutes} min"))
    begin = period.last_ended(moment)
    assert begin + period.length <= moment < begin + 2 * period.length
    assert period.begin_of(period.name_of(begin)) == begin


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"creation-delay": "1 d"},
            "'tag.creation-delay' is 86,400,000 ms, but must be less than a period",
        ),
        ({"creation-period-duration": "90 s"}, "names of tags contain minutes"),
        ({"creation-period-duration": "10 s"}, "names of tags contain minutes"),
        ({"batch.customized-name": "a/b"}, "cannot be a file name"),
    ],
)
def test_options_that_fit_no_period_are_refused(given: dict[str, str], message: str) -> None:
    lake = empty_lake()
    wanted = {f"tag.{name}": value for name, value in given.items()}
    with pytest.raises(kt.InvalidError, match=message):
        lake.create_table("t", SCHEMA, ["k"], options=wanted)
    table = lake.create_table("t", SCHEMA, ["k"])
    with pytest.raises(kt.InvalidError, match=message):
        table.alter(*(SetOption(*pair) for pair in wanted.items()))


# -- which snapshot gets the tag -------------------------------------------------------------------

DAILY = options(automatic_creation="process-time")


def test_first_snapshot_after_the_end_of_a_day_gets_its_tag() -> None:
    table = committed_at(at(29, 12), at(29, 23), at(30, 0, 5), at(30, 9), at(31, 3), at(31, 4))
    create_due_tags(table.metadata, DAILY)
    assert tag_ids(table) == {"2026-01-28": 1, "2026-01-29": 3, "2026-01-30": 5}
    assert create_due_tags(table.metadata, DAILY) == []


def test_what_comes_within_the_delay_is_in_the_tag_of_the_day_before() -> None:
    table = committed_at(at(29, 12), at(30, 0, 5), at(30, 0, 9), at(30, 0, 10), at(30, 1))
    create_due_tags(
        table.metadata, options(automatic_creation="process-time", creation_delay="10 min")
    )
    assert tag_ids(table) == {"2026-01-28": 1, "2026-01-29": 4}


def test_day_without_commits_has_no_tag_unless_missing_ones_are_completed() -> None:
    moments = [at(20, 12), at(23, 1), at(23, 2), at(23, 3)]
    table = committed_at(*moments)
    create_due_tags(table.metadata, DAILY)
    assert tag_ids(table) == {"2026-01-19": 1, "2026-01-22": 2}
    table = committed_at(*moments)
    completing = options(automatic_creation="process-time", automatic_completion="true")
    create_due_tags(table.metadata, completing)
    assert tag_ids(table) == {
        "2026-01-19": 1, "2026-01-20": 2, "2026-01-21": 3, "2026-01-22": 4,
    }  # fmt: skip


def test_watermark_says_how_far_a_stream_had_come() -> None:
    table = committed_at(at(29, 12), at(30, 0, 5), at(30, 8), watermark=True)
    create_due_tags(table.metadata, options(automatic_creation="watermark"))
    assert tag_ids(table) == {"2026-01-28": 1, "2026-01-29": 2}
    table = committed_at(at(29, 12), at(30, 0, 5))
    assert create_due_tags(table.metadata, options(automatic_creation="watermark")) == []


def test_oldest_tags_of_periods_go_and_those_of_users_stay() -> None:
    table = committed_at(*(at(day, 1) for day in range(1, 8)))
    table.create_tag("mine", 1)
    keeping = options(automatic_creation="process-time", num_retained_max="3")
    create_due_tags(table.metadata, keeping)
    assert tag_ids(table) == {"mine": 1, "2026-01-04": 5, "2026-01-05": 6, "2026-01-06": 7}


def test_tag_that_another_writer_made_is_left_as_it_is() -> None:
    table = committed_at(at(29, 12), at(30, 1))

    class Faster(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            inner = kt.Table(self.inner, "t")
            create_due_tags(inner.metadata, DAILY)
            return super().create(path, data)

    assert create_due_tags(kt.Table(Faster(table.metadata.store), "t").metadata, DAILY) == []
    assert tag_ids(table) == {"2026-01-28": 1, "2026-01-29": 2}


@given(hours=st.lists(st.integers(0, 60), min_size=1, max_size=12),
       calls=st.integers(1, 4), delay=st.integers(0, 59))  # fmt: skip
def test_tags_are_the_same_however_often_they_are_made(
    hours: list[int], calls: int, delay: int
) -> None:
    """After each commit, or after some: the first snapshot since a period's end gets its name."""
    moments = sorted(DAY + timedelta(minutes=30 * hour) for hour in hours)
    asked = options(
        automatic_creation="process-time", creation_period="hourly", creation_delay=f"{delay} min"
    )
    expected: dict[str, int] = {}
    last = None
    for number, moment in enumerate(moments, start=1):
        ended = (moment - DAY) // timedelta(hours=1) - 1
        is_due = last is None or moment - timedelta(minutes=delay) >= DAY + timedelta(
            hours=last + 2
        )
        if is_due:
            expected[f"{DAY + timedelta(hours=ended):%Y-%m-%d %H}"] = number
            last = ended
    table = committed_at(*moments)
    store = table.metadata.store
    later = {n: store.read(paths.snapshot_path(n)) for n in range(1, len(moments) + 1)}
    store.delete(map(paths.snapshot_path, later))
    store.delete(["snapshot/LATEST", "snapshot/EARLIEST"])
    for number, data in later.items():
        store.put(paths.snapshot_path(number), data)
        if number % calls == 0 or number == len(later):
            create_due_tags(table.metadata, asked)
    assert tag_ids(table) == expected


# -- after commits ---------------------------------------------------------------------------------


def test_write_makes_the_tag_that_is_due_and_the_next_one_makes_no_other() -> None:
    table = new_table(tag_automatic_creation="process-time", tag_default_time_retained="7 d")
    before = datetime.now() - timedelta(days=1)
    table.write([{"k": 1}])
    table.write([{"k": 2}])
    (tag,) = table.tags()
    assert tag.name in (f"{before:%Y-%m-%d}", f"{datetime.now() - timedelta(days=1):%Y-%m-%d}")
    assert (tag.snapshot_id, tag.time_retained) == (1, timedelta(days=7))


def test_batch_write_moves_the_tag_of_the_day() -> None:
    table = new_table(tag_automatic_creation="batch")
    table.write([{"k": 1}])
    table.write([{"k": 2}])
    (tag,) = table.tags()
    assert tag.name.startswith("batch-write-20")
    assert tag.snapshot_id == table.snapshots()[-1].id
    newest = tag.snapshot_id
    table.write([{"k": 3}], commit_user="stream", commit_identifier=1)
    assert table.tags()[0].snapshot_id == newest


def test_batch_tag_may_have_a_name_of_its_own_and_old_days_go() -> None:
    table = empty_table(
        SCHEMA,
        ["k"],
        options={"tag.automatic-creation": "batch", "tag.batch.customized-name": "latest"},
    )
    table.write([{"k": 1}])
    table.write([{"k": 2}])
    assert tag_ids(table) == {"latest": 2}
    table = new_table(tag_automatic_creation="batch", tag_num_retained_max="2")
    table.write([{"k": 1}])
    for day in ("2020-01-01", "2020-01-02", "2020-01-03"):
        table.create_tag(f"batch-write-{day}", 1)
    table.create_tag("mine", 1)
    table.write([{"k": 2}])
    assert sorted(tag_ids(table))[0] == "batch-write-2020-01-03"
    assert len(tag_ids(table)) == 3


def test_table_that_is_write_only_leaves_tags_to_whoever_compacts_it() -> None:
    table = empty_table(
        SCHEMA, ["k"], options={"write-only": "true", "tag.automatic-creation": "process-time"}
    )
    table.write([{"k": 1}])
    table.write([{"k": 2}])
    assert tag_ids(table) == {}
    table.compact(full=True)
    assert list(tag_ids(table).values()) == [1]


def test_tag_that_cannot_be_made_is_a_warning() -> None:
    table = new_table(tag_automatic_creation="process-time")
    store = FaultyStore(table.metadata.store, [Fault("create", "*tag/*", times=9)])
    with pytest.warns(
        kt.KeytideWarning, match="creating automatic tags failed. .*sys.trigger_tag"
    ) as told:
        kt.Table(store, "t").write([{"k": 1}])
    assert told[0].filename == __file__
    assert table.scan().count() == 1
    assert tag_ids(table) == {}
    table.write([{"k": 2}])
    assert list(tag_ids(table).values()) == [1]


def test_procedure_makes_the_tags_that_are_due() -> None:
    lake = empty_lake()
    table = lake.create_table("t", SCHEMA, ["k"], options={"write-only": "true"})
    table.write([{"k": 1}])
    table.alter(SetOption("tag.automatic-creation", "process-time"))
    lake.sql("CALL sys.trigger_tag_automatic_creation('t')")
    assert list(tag_ids(table).values()) == [1]


# -- the end of their time -------------------------------------------------------------------------


def test_tags_go_when_their_time_is_over() -> None:
    table = committed_at(DAY)
    hours = [1, 5, None]
    for hour in hours:
        retained = "forever" if hour is None else f"{hour} h"
        create_tag_of(
            table.metadata, f"t{hour}", source_of(table.metadata, 1), retained, clock_ns=lambda: 0
        )

    def left(after_ms: int) -> list[str]:
        forget_over(table.metadata, clock_ns=lambda: after_ms * 1_000_000)
        return sorted(tag_ids(table))

    assert left(HOUR_MS) == ["t1", "t5", "tNone"]
    assert left(HOUR_MS + 1) == ["t5", "tNone"]
    assert left(1000 * HOUR_MS) == ["tNone"]


def test_tags_made_before_a_time_go_when_that_is_asked_for() -> None:
    table = committed_at(DAY)
    table.create_tag("plain")
    table.create_tag("ending", time_retained="1 d")
    time.sleep(0.002)
    now = datetime.now().astimezone()
    time.sleep(0.002)
    table.create_tag("later", time_retained="1 d")
    assert sorted(tag.name for tag in table.expire_tags(now, dry_run=True)) == ["ending", "plain"]
    assert len(table.tags()) == 3
    assert sorted(tag.name for tag in table.expire_tags(now)) == ["ending", "plain"]
    assert list(tag_ids(table)) == ["later"]
    assert table.expire_tags() == []


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_write_deletes_tags_whose_time_is_over(enabled: str) -> None:
    table = new_table(tag_time_expire_enabled=enabled)
    store = table.metadata.store
    other = empty_table(SCHEMA, ["k"])
    other.write([{"k": 1}])
    create_tag_of(other.metadata, "old", source_of(other.metadata, 1), "1 h", clock_ns=lambda: 0)
    store.put(paths.tag_path("old"), other.metadata.store.read(paths.tag_path("old")))
    table.write([{"k": 1}])
    assert list(tag_ids(table)) == ([] if enabled == "true" else ["old"])


def test_procedure_tells_which_tags_have_expired() -> None:
    lake = empty_lake()
    table = lake.create_table("t", SCHEMA, ["k"], options={"write-only": "true"})
    table.write([{"k": 1}])
    create_tag_of(table.metadata, "old", source_of(table.metadata, 1), "1 h", clock_ns=lambda: 0)
    table.create_tag("new", time_retained="1 h")
    assert lake.sql("CALL sys.expire_tags('t')").to_pylist() == [{"expired_tags": "old"}]
    found = lake.sql("CALL sys.expire_tags(table => 't', older_than => '2100-01-01')")
    assert found.to_pylist() == [{"expired_tags": "new"}]


def test_time_that_is_none_is_refused() -> None:
    with pytest.raises(kt.InvalidError, match="older_than is 'soon'"):
        committed_at(DAY).expire_tags("soon")
