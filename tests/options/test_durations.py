"""Durations and moments: what is out of range is refused before anything is done, by every door."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import keytide as kt
from command_line import commands
from keytide.catalogs.system_tables import system_table
from keytide.cli.main import app
from keytide.definition.schema_evolution import SetOption
from keytide.format import paths
from keytide.format.checksum import SEAL_KEY
from keytide.options import SECTIONS, Option
from keytide.options.values import DURATION, DURATION_OR_FOREVER, duration_ms
from keytide.sql.procedures import PROCEDURES

pytestmark = pytest.mark.filterwarnings("error:.*failed. A later write")

NO_DURATION = ["-2 d", "-1", "2 weeks", "a while", "", "9223372036854775808 ns", "1e3 s"]
NO_TIMEDELTA = [timedelta(days=-2), timedelta(microseconds=-1), timedelta(days=3_000_000),
                timedelta.max, timedelta.min]  # fmt: skip
NO_SECONDS = [-1, -0.5, float("nan"), float("inf"), 1e30, 10**400]
LONGEST = "9223372036854775807 ns"
ALSO_NEEDED: Mapping[str, Mapping[str, Any]] = {
    "create_tag": {"tag": "new"},
    "create_tag_from_timestamp": {"tag": "new", "timestamp": 0},
    "create_tag_from_watermark": {"tag": "new", "watermark": 0},
    "replace_tag": {"tag": "old"},
}


@pytest.fixture
def table(warehouse: str) -> kt.Table:
    """Four days around today, with a watermark and one tag."""
    schema = pa.schema([("d", pa.date32()), ("k", pa.int64())])
    made = kt.connect(warehouse).create_table("t", schema, ["d", "k"], ["d"])
    made.write([{"d": date.today() + timedelta(days=day), "k": day} for day in range(-2, 2)])
    change(made, paths.snapshot_path(1), watermark=7)
    made.create_tag("old")
    return made


@pytest.fixture
def untouched(table: kt.Table) -> Iterator[None]:
    """A table that nothing happens to."""
    before = stored(table)
    yield
    assert stored(table) == before


def stored(table: kt.Table) -> dict[str, bytes]:
    store = table.stored.store
    return {file.path: store.read(file.path) for file in store.list("")}


def is_duration(parameter: inspect.Parameter) -> bool:
    named = re.search(r"retained|expiration|duration|_seconds$", parameter.name)
    return bool(named) or "timedelta" in str(parameter.annotation)


def durations(calls: Mapping[str, Callable[..., Any]]) -> list[tuple[str, str]]:
    return sorted(
        (name, parameter.name)
        for name, call in calls.items()
        for parameter in inspect.signature(call).parameters.values()
        if is_duration(parameter)
    )


METHODS = {
    f"{made.__name__}.{name}": call
    for made in (kt.Lake, kt.Table, kt.Scan)
    for name, call in inspect.getmembers(made, inspect.isfunction)
    if name[0] != "_"
}
IN_PYTHON, IN_SQL = durations(METHODS), durations(PROCEDURES)


def test_durations_are_found_by_every_door() -> None:
    assert IN_PYTHON == [
        ("Table.create_tag", "time_retained"),
        ("Table.expire_partitions", "expiration_time"),
        ("Table.follow", "poll_seconds"),
        ("Table.follow", "timeout_seconds"),
        ("Table.replace_tag", "time_retained"),
    ]
    assert {name for name, _ in IN_SQL} == {*ALSO_NEEDED, "expire_partitions"}
    assert {command for command, _ in in_commands()} == {
        "tag create", "tag replace", "expire-partitions"
    }  # fmt: skip


def in_commands() -> list[tuple[str, str]]:
    return [
        (" ".join(words), option.opts[0])
        for words, found in commands().items()
        for option in found.params
        if re.search(r"retained|expiration|duration|seconds", option.opts[0])
    ]


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("call", "argument"), IN_PYTHON)
def test_no_duration_is_refused_by_name_and_nothing_is_done(
    table: kt.Table, call: str, argument: str
) -> None:
    method = call.removeprefix("Table.")
    needed = {"name": "old"} if "tag" in method else {}
    wrong = NO_SECONDS if argument.endswith("_seconds") else [*NO_DURATION, *NO_TIMEDELTA]
    for value in wrong:
        with pytest.raises(kt.InvalidError, match=argument):
            print(value, getattr(table, method)(**needed, **{argument: value}))


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("procedure", "argument"), IN_SQL)
def test_no_duration_is_refused_by_procedures(
    table: kt.Table, warehouse: str, procedure: str, argument: str
) -> None:
    others = {"table": "t", **ALSO_NEEDED.get(procedure, {})}
    given = ", ".join(f"{name} => {value!r}" for name, value in others.items())
    for value in NO_DURATION:
        with pytest.raises(kt.InvalidError, match=argument):
            kt.connect(warehouse).sql(f"CALL sys.{procedure}({given}, {argument} => '{value}')")


@pytest.mark.takes_turns
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("command", "option"), in_commands())
def test_no_duration_is_refused_by_commands(table: kt.Table, command: str, option: str) -> None:
    name = ["old"] if command.startswith("tag") else []
    for value in NO_DURATION:
        done = CliRunner().invoke(app, [*command.split(), table.uri, *name, f"{option}={value}"])
        assert (done.exit_code, option.strip("-").replace("-", "_") in done.stderr) == (1, True)


@given(
    st.integers(0, 2**63 // 10**6 - 1), st.sampled_from([("ms", 1), ("s", 1000), ("d", 86400_000)])
)
def test_texts_and_timedeltas_mean_the_same(count: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    count //= factor
    text, span = f"{count} {name}", timedelta(milliseconds=count * factor)
    assert duration_ms(text, "a") == duration_ms(span, "a") == count * factor


@pytest.mark.parametrize("longest", [LONGEST, timedelta(days=106_751)])
def test_longest_duration_is_taken_and_lasts(table: kt.Table, longest: Any) -> None:
    assert table.expire_partitions(longest).partitions == ()
    made = table.create_tag("long", time_retained=longest)
    assert table.replace_tag("long", time_retained=longest).time_retained == made.time_retained
    assert table.expire_tags() == []
    assert list(table.follow(1, poll_seconds=1e9, timeout_seconds=0)) == []


# -- options ---------------------------------------------------------------------------------------

OPTIONS = [
    option
    for options in SECTIONS.values()
    for option in options
    if option.type in (DURATION, DURATION_OR_FOREVER)
]
ALSO_SET = {
    "record-level.expire-time": {"record-level.time-field": "k"},
    "tag.creation-period-duration": {"tag.automatic-creation": "process-time"},
    "tag.creation-delay": {"tag.automatic-creation": "process-time"},
    "tag.default-time-retained": {"tag.automatic-creation": "batch"},
    "consumer.expiration-time": {
        "snapshot.num-retained.min": "1",
        "snapshot.num-retained.max": "1",
    },
    "upsert.compaction.buffer-time-period": {"upsert.mode": "full"},
}


EXTREMES = {option.key: ("0 ms", LONGEST) for option in OPTIONS}
EXTREMES["tag.creation-delay"] = ("0 ms", "23 h")
EXTREMES["tag.creation-period-duration"] = ("1 min", "106751 d")


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("option", "value"), [(key, value) for key, values in EXTREMES.items() for value in values]
)
def test_table_lives_with_every_duration_that_an_option_takes(
    warehouse: str, option: str, value: str
) -> None:
    schema = pa.schema([("d", pa.date32()), ("k", pa.int32())])
    given = {option: value, "num-sorted-run.compaction-trigger": "2"}
    given |= ALSO_SET.get(option, {})
    made = kt.connect(warehouse).create_table("t", schema, ["d", "k"], ["d"], options=given)
    for k in range(3):
        made.write([{"d": date.today(), "k": k}])
    made.create_tag("a")
    call_all(made)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_no_duration_is_refused_for_every_option(warehouse: str, option: Option) -> None:
    for value in NO_DURATION:
        with pytest.raises(kt.InvalidError, match=re.escape(option.key)):
            kt.connect(warehouse).create_table(
                "t", pa.schema([("k", pa.int64())]), ["k"], options={option.key: value}
            )


# -- stored documents ------------------------------------------------------------------------------


def change(table: kt.Table, path: str, **members: Any) -> None:
    """What another engine could have written, whose documents have no checksum."""
    store = table.stored.store
    document = {**json.loads(store.read(path)), **members}
    document.pop(SEAL_KEY, None)
    store.put(path, json.dumps(document).encode())


def call_all(table: kt.Table) -> None:
    """Every call that looks at times."""
    table.expire_tags()
    table.expire_snapshots()
    table.expire_partitions("30 d")
    table.snapshots()._repr_html_()
    table.tags()._repr_html_()
    table.branches()._repr_html_()
    table.doctor()
    table.verify(quick=True)
    table.consumers()
    for name in ("snapshots", "tags", "schemas", "options", "files"):
        system_table(table.stored, name).to_pylist()


def look_at(table: kt.Table) -> None:
    """The same, and every command that shows times."""
    call_all(table)
    for command in ("snapshots", "tag ls", "describe"):
        for form in ("table", "json"):
            done = CliRunner().invoke(app, [*command.split(), table.uri, "--format", form])
            assert done.exit_code == 0, (command, done.stderr)


FIRST, END = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (1000, 9000))
MOMENTS = [0, -1, FIRST, FIRST - 1, END - 1, END, 2**63 - 1, -(2**63)]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("file", [paths.snapshot_path(1), paths.tag_path("old")])
def test_times_of_other_writers_are_shown_or_their_file_is_refused(
    table: kt.Table, file: str, moment: int
) -> None:
    change(table, file, timeMillis=moment)
    fresh = kt.open_table(table.uri)
    if FIRST <= moment < END:
        look_at(fresh)
    else:
        with pytest.raises(kt.DataError, match=r"timeMillis.*years 1000 to 8999"):
            print(fresh.snapshots(), fresh.tags())


@pytest.mark.one_in(14)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("creation", ["watermark", "process-time", "batch"])
def test_any_watermark_of_other_writers_is_lived_with(
    table: kt.Table, moment: int, creation: str
) -> None:
    change(table, paths.snapshot_path(1), watermark=moment)
    table.alter(SetOption("tag.automatic-creation", creation))
    fresh = kt.open_table(table.uri)
    fresh.write([{"d": date.today(), "k": 9}])
    call_all(fresh)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("retained", [0, 1, 0.5, 2**62, 2**63, "PT2562047788015215H", "P1D"])
@pytest.mark.parametrize("made", [[1, 1, 1, 0, 0], [2026, 1, 31, 12, 0], [9999, 12, 31, 23, 59]])
def test_any_time_of_a_tag_of_other_writers_is_lived_with(
    table: kt.Table, retained: Any, made: list[int]
) -> None:
    change(table, paths.tag_path("old"), tagCreateTime=made, tagTimeRetained=retained)
    fresh = kt.open_table(table.uri)
    (tag,) = fresh.tags()
    is_over = tag.create_time is not None and tag.time_retained is not None
    is_over = is_over and datetime.now() - tag.create_time > tag.time_retained  # type: ignore[operator]
    assert len(fresh.expire_tags(dry_run=True)) == is_over
    look_at(fresh)
