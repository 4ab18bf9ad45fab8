"""The gate: what a definition asks for is harmless, supported, or refused by name at every door."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from gate_doors import CLEANING, READING, ROWS, WRITING, Door
from keytide.definition.schema_evolution import RemoveOption, SetOption
from keytide.format import paths
from keytide.format.cache import forget_files
from keytide.gate import TYPES
from keytide.options import SECTIONS, Refused, option_of
from keytide.options.features import FEATURES, HARMLESS, Feature, Needs, feature_of, is_harmless
from keytide.snapshot.lineage import forget_lineages
from own_options import ELSEWHERE

BRANCHES_READ = ("scan.fallback-branch", "scan.primary-branch")
PAIMON = Path(__file__).parents[1] / "data" / "paimon-2.0.0-options.tsv"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])

OPEN_TO: dict[Needs, tuple[dict[str, Door], dict[str, Door]]] = {
    Needs.NOTICE: ({**READING, **CLEANING, **WRITING}, {}),
    Needs.WRITERS: ({**READING, **CLEANING}, WRITING),
    Needs.CLEANERS: (READING, {**CLEANING, **WRITING}),
    Needs.READERS: ({}, {**READING, **CLEANING, **WRITING}),
}
"""The doors that stay open if somebody has to know a feature, and those that close."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gate")
    table = kt.connect(str(place)).create_table("t", SCHEMA, ["k"], options={"bucket": "1"})
    table.write(ROWS)
    table.write(ROWS)
    return place


class Foreign:
    """Copies of a table whose definition another engine changed."""

    def __init__(self, template: Path, place: Path) -> None:
        self.template, self.place, self.made = template, place, 0

    def table(
        self, options: dict[str, str], columns: dict[str, Any] | None = None
    ) -> tuple[kt.Lake, kt.Table]:
        self.made += 1
        place = self.place / str(self.made)
        shutil.copytree(self.template, place)
        path = place / "default.db" / "t" / "schema" / "schema-0"
        schema = json.loads(path.read_text())
        schema["options"] |= {"publish": "delta", **options}
        for number, (name, kind) in enumerate((columns or {}).items(), start=2):
            schema["fields"].append({"id": number, "name": name, "type": kind})
            schema["highestFieldId"] = number
        path.write_text(json.dumps(schema))
        forget_files()
        forget_lineages()
        lake = kt.connect(str(place))
        return lake, lake.table("t")


@pytest.fixture
def foreign(template: Path, tmp_path: Path) -> Foreign:
    return Foreign(template, tmp_path)


def files_of(table: kt.Table) -> set[Path]:
    return {path for path in Path(table.uri.removeprefix("file://")).rglob("*") if path.is_file()}


def assert_open_to(
    foreign: Foreign, needs: Needs, name: str, options: dict[str, str], columns: Any = None
) -> None:
    """Just the doors close whose visitors have to know it. They name it and change nothing."""
    still_open, closed = OPEN_TO[needs]
    lake, table = foreign.table(options, columns)
    before = files_of(table)
    for door, enter in closed.items():
        with pytest.raises(kt.UnsupportedError, match=r".") as refused:
            enter(lake, table)
        assert name in str(refused.value), door
    assert files_of(table) == before
    for door, enter in still_open.items():
        lake, table = foreign.table(options, columns)
        try:
            enter(lake, table)
        except BaseException as error:
            error.add_note(f"at {door}")
            raise


NOT_READ = [each for each in FEATURES if each.key not in BRANCHES_READ]
"""Those that close the doors of `OPEN_TO`. For the others see test_fallback_branches.py."""


def value_of(feature: Feature) -> str:
    return "true" if feature.idle == ("false",) else "v"


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.one_in(14)
@pytest.mark.parametrize("feature", NOT_READ, ids=lambda feature: feature.key)
def test_each_feature_is_refused_at_its_doors(foreign: Foreign, feature: Feature) -> None:
    key, value = feature.key.replace("<column>", "v"), value_of(feature)
    known = option_of(key)
    if known is not None:
        value = {"type": "object-table", "scan.mode": "incremental"}.get(key, value)
        with_number = key.startswith("scan.") and ("id" in key or "millis" in key)
        value = "1" if with_number or key == "scan.watermark" else value
    assert feature.asks(value)
    assert_open_to(foreign, feature.needs, key, {key: value})


@pytest.mark.one_in(14)
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.key)
def test_idle_feature_closes_no_door(foreign: Foreign, feature: Feature) -> None:
    key = feature.key.replace("<column>", "v")
    for value in feature.idle:
        if value == "external-table":
            continue  # it has no files to read
        _, table = foreign.table({key: value})
        with warnings.catch_warnings(action="error"):
            assert table.scan().to_pylist() == ROWS
            table.write(ROWS)


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_unknown_option_is_refused_to_all_who_change_files(foreign: Foreign) -> None:
    assert_open_to(foreign, Needs.CLEANERS, "some.new-option", {"some.new-option": "x"})


def test_unknown_option_is_named_to_readers(foreign: Foreign) -> None:
    _, table = foreign.table({"some.new-option": "x"})
    with pytest.warns(kt.KeytideWarning, match="does not know the option 'some.new-option'"):
        assert table.scan().to_pylist() == ROWS


RESETS: dict[str, Door] = {
    "SQL": lambda lake, _: lake.sql("ALTER TABLE t RESET ('some.new-option', 'Other_new')"),
    "TBLPROPERTIES": lambda lake, _: lake.sql(
        "ALTER TABLE t UNSET TBLPROPERTIES ('some.new-option', 'Other_new')"
    ),
    "Python": lambda _, t: t.alter(RemoveOption("some.new-option"), RemoveOption("Other_new")),
}


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("way", RESETS)
def test_unknown_option_can_be_removed_but_not_set(foreign: Foreign, way: str) -> None:
    lake, table = foreign.table({"some.new-option": "x", "Other_new": "y"})
    for key in ("some.new-option", "another.new-option"):
        with pytest.raises(kt.InvalidError, match=f"unknown option '{key}'"):
            table.alter(SetOption(key, "z"))
    with pytest.raises(kt.InvalidError, match="unknown option 'another'"):
        table.alter(RemoveOption("another"))
    with pytest.raises(kt.UnsupportedError, match=r"RESET it"):
        table.write(ROWS)
    RESETS[way](lake, table)
    table = lake.table("t")
    assert {"some.new-option", "Other_new"} & table.options.keys() == set()
    with warnings.catch_warnings(action="error"):
        table.write([{"k": 3, "v": "c"}])
        assert table.scan().count() == 3


@pytest.mark.parametrize("key", BRANCHES_READ)
def test_table_of_two_branches_can_be_read_after_a_reset(foreign: Foreign, key: str) -> None:
    lake, table = foreign.table({key: "b"})
    with pytest.raises(kt.NotFoundError, match=f"no branch 'b'.*{key}.*RESET"):
        table.scan()
    lake.sql(f"ALTER TABLE t RESET ('{key}')")
    assert lake.table("t").scan().count() == 2


def test_snapshot_that_a_table_option_chooses_is_named_to_readers(foreign: Foreign) -> None:
    _, table = foreign.table({"scan.snapshot-id": "1"})
    with pytest.warns(kt.KeytideWarning, match="'scan.snapshot-id' = '1'"):
        assert table.scan().to_pylist() == ROWS


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("within", ["column", "ARRAY", "ROW", "MAP"])
def test_each_type_is_refused_at_its_doors(foreign: Foreign, kind: str, within: str) -> None:
    inner: Any = kind
    if within == "ARRAY":
        inner = {"type": "ARRAY", "element": kind}
    elif within == "MAP":
        inner = {"type": "MAP", "key": "INT", "value": kind}
    elif within == "ROW":
        inner = {"type": "ROW", "fields": [{"id": 3, "name": "f", "type": kind}]}
    if TYPES[kind].needs is Needs.WRITERS:
        lake, table = foreign.table({}, {"x": inner})
        assert [row["x"] for row in table.scan()] == [None, None]
        for enter in WRITING.values():
            with pytest.raises(kt.UnsupportedError, match=f"'x' is {kind}"):
                enter(lake, table)
        return
    needs = TYPES[kind].needs if within == "column" else Needs.READERS
    assert_open_to(foreign, needs, f"'x' is {kind}", {}, {"x": inner})


def test_harmless_options_close_no_door(foreign: Foreign) -> None:
    given = {key: "1" for key in HARMLESS if "<" not in key and option_of(key) is None}
    _, table = foreign.table(given)
    with warnings.catch_warnings(action="error"):
        assert table.scan().to_pylist() == ROWS
        table.write(ROWS)
        table.remove_orphan_files()


def test_every_option_of_paimon_is_known() -> None:
    keys = [line.split("\t")[0] for line in PAIMON.read_text().splitlines()]
    assert len(keys) == 332
    unknown = [k for k in keys if not (option_of(k) or feature_of(k) or is_harmless(k))]
    assert unknown == []


def test_every_plain_option_is_one_of_paimon_or_told_to_be_our_own() -> None:
    theirs = {line.split("\t")[0] for line in PAIMON.read_text().splitlines()}
    plain = {option.key for options in SECTIONS.values() for option in options
             if not option.has_place and not option.key.startswith("upsert.")}  # fmt: skip
    assert plain - theirs == ELSEWHERE


def test_every_refused_option_is_judged_where_another_engine_set_it() -> None:
    ours = ("external.", "upsert.on-tie")  # only Keytide writes them
    refused = [
        option.key
        for options in SECTIONS.values()
        for option in options
        if isinstance(option.use, Refused) and not option.key.startswith(ours)
    ]
    assert [k for k in refused if not (feature_of(k) or is_harmless(k))] == []


def test_limits_name_every_refused_option_and_type() -> None:
    page = (PAIMON.parents[2] / "docs" / "limits.md").read_text()
    asked = [f.key for f in FEATURES if f.needs > Needs.NOTICE] + [*TYPES]
    assert [key for key in asked if key not in page] == []


def test_no_option_is_both_a_feature_and_harmless() -> None:
    assert [f.key for f in FEATURES if "<" not in f.key and f.key in HARMLESS] == []
    assert len({f.key for f in FEATURES}) == len(FEATURES)


def test_table_that_cannot_be_read_can_still_be_described_and_dropped(foreign: Foreign) -> None:
    lake, table = foreign.table({"query-auth.enabled": "true"})
    assert table.schema.names == ["k", "v"]
    assert [*lake.tables()]
    assert table.snapshots()
    lake.drop_table("t")
    assert not [*lake.tables()]


@pytest.mark.parametrize("door", READING)
def test_present_definition_closes_the_past_too(foreign: Foreign, door: str) -> None:
    lake, table = foreign.table({})
    schema = table.table_schema
    hidden = replace(schema, id=1, options={**schema.options, "query-auth.enabled": "true"})
    table.metadata.store.create(paths.schema_path(1), hidden.to_json())
    table = lake.table("t")
    with pytest.raises(kt.UnsupportedError, match=r"query-auth\.enabled"):
        READING[door](lake, table)
