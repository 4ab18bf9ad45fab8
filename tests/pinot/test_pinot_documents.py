"""How documents of Pinot are read: spellings, misspellings, texts and files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pinot_configs import CONFIG, PARTITIONS, SCHEMA, Change, changed, make

import keytide as kt
from keytide.pinot.config import Column, Upsert, member_names
from new_tables import empty_lake


@pytest.mark.parametrize("form", ["dict", "text", "text with blanks", "path", "path as a text"])
def test_document_is_a_dict_a_text_or_a_file(form: str, tmp_path: Path) -> None:
    def given(name: str, document: Any) -> Any:
        text = json.dumps(document)
        path = tmp_path / name
        path.write_text(text)
        return {
            "dict": document, "text": text, "text with blanks": f"\n  {text}\n", "path": path,
            "path as a text": str(path),
        }[form]  # fmt: skip

    table = kt.pinot.create_table(empty_lake(), given("table", CONFIG), given("schema", SCHEMA))
    assert table.name == "default.orders"


@pytest.mark.parametrize(
    ("config", "schema", "message"),
    [
        ("{", SCHEMA, "Pinot's table config is not valid JSON"),
        (CONFIG, "nowhere.json", "Pinot's schema 'nowhere.json' cannot be read: .*pass a dict"),
        (CONFIG, Path("nowhere.json"), "Pinot's schema 'nowhere.json' cannot be read"),
        (CONFIG, "a\0b", "cannot be read"),
        (5, SCHEMA, "create_table: table_config is 5 of type int"),
        (CONFIG, ["k"], "create_table: schema is"),
    ],
)
def test_what_is_no_document_is_refused(config: Any, schema: Any, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        kt.pinot.create_table(empty_lake(), config, schema)


def test_file_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("[1]")
    with pytest.raises(kt.InvalidError, match=r"s.json' is \[1\]; expected a JSON object"):
        kt.pinot.create_table(empty_lake(), CONFIG, tmp_path / "s.json")


MISSPELT: list[tuple[Change, Change, str]] = [
    ({"upsertConfig.deleteRecordColum": "gone"}, {},
     "'upsertConfig' has the unknown member 'deleteRecordColum'; did you mean 'deleteRecord"),
    ({"upsertConfig.zzz": 1}, {}, "unknown member 'zzz'; remove it"),
    ({"upsertconfig": {}}, {}, "unknown member 'upsertconfig'; did you mean 'upsertConfig'"),
    ({}, {"primaryKeyColumn": ["k"]}, "did you mean 'primaryKeyColumns'"),
    ({}, {"metricFieldSpecs": [{"name": "m", "datatype": "INT"}]},
     "column 'm' has the unknown member 'datatype'; did you mean 'dataType'"),
    ({"upsertConfig.mode": "SOME"}, {}, "'mode' is 'SOME'; expected one of FULL, PARTIAL, NONE"),
    ({"upsertConfig.hashFunction": "SHA"}, {}, "'hashFunction' is 'SHA'; expected one of NONE"),
    ({"upsertConfig.comparisonColumns": "ts"}, {}, "'comparisonColumns' is 'ts'; expected a list"),
    ({"upsertConfig.metadataTTL": "soon"}, {}, "'metadataTTL' is 'soon'; expected a number"),
    ({"upsertConfig.metadataTTL": True}, {}, "'metadataTTL' is True; expected a number"),
    ({"upsertConfig.dropOutOfOrderRecord": 1}, {}, "is 1; expected true or false"),
    ({"upsertConfig.deleteRecordColumn": 7}, {}, "is 7; expected a non-empty string"),
    ({"upsertConfig": "FULL"}, {}, "'upsertConfig' is 'FULL'; expected an object"),
    ({"upsertConfig.partialUpsertStrategies": {"n": "ADD"}}, {}, "expected one of OVERWRITE"),
    ({"upsertConfig.postPartialUpsertTransformConfigs": [{"columnName": "n"}]}, {},
     "expected a list of objects with 'columnName' and 'transformFunction'"),
    ({"tableType": "BATCH"}, {}, "'tableType' is 'BATCH'; expected one of REALTIME, OFFLINE"),
    ({"tableType": None}, {}, "lacks 'tableType'"),
    ({"tableName": None}, {}, "lacks 'tableName'"),
    ({"routing": "strict"}, {}, "'routing' is 'strict'; expected an object"),
    ({PARTITIONS: {"k": {"numPartitions": 0}}}, {},
     "numPartitions' is 0; expected an integer, 1 or more"),
    ({PARTITIONS: {"k": {"numPartitions": 1.5}}}, {}, "is 1.5; expected an integer, 1 or more"),
    ({}, {"metricFieldSpecs": [{"name": "m", "dataType": "TEXT"}]}, "expected one of INT, LONG"),
    ({}, {"metricFieldSpecs": [{"name": "m"}]}, "column 'm' lacks 'dataType'"),
    ({}, {"metricFieldSpecs": [{"dataType": "INT"}]}, "column '' lacks 'name'"),
    ({}, {"metricFieldSpecs": {"m": "INT"}}, "'metricFieldSpecs' is .*; expected a list"),
    ({}, {"metricFieldSpecs": [{"name": "k", "dataType": "INT"}]}, "has two columns 'k'"),
    ({}, {"metricFieldSpecs": [{"name": "m", "dataType": "INT", "defaultNullValue": "x"}]},
     "DEFAULT of column 'm' is 'x', which is not a value of INT"),
    ({}, {"metricFieldSpecs": [
        {"name": "m", "dataType": "TIMESTAMP", "defaultNullValue": 10**30}]},
     "DEFAULT of column 'm'"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "schema", "message"), MISSPELT)
def test_member_that_does_not_fit_is_refused(config: Change, schema: Change, message: str) -> None:
    lake = empty_lake()
    with pytest.raises(kt.InvalidError, match=message):
        make(config, schema, lake)
    assert not lake.exists or lake.tables() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"comparisonColumn": "n"}, {"comparisonColumns": ["n"]}),
        ({"comparisonColumn": "n", "comparisonColumns": ["n"]}, {"comparisonColumns": ["n"]}),
        ({"mode": "full"}, {"mode": "FULL"}),
        ({"hashFunction": "murmur3"}, {"hashFunction": "MURMUR3"}),
        ({"comparisonColumns": []}, {}),
        ({"metadataTTL": 0, "dropOutOfOrderRecord": False, "deleteRecordColumn": None}, {}),
        ({"snapshot": "DEFAULT", "partialUpsertStrategies": {}, "enablePreload": "false"}, {}),
    ],
)
def test_spellings_of_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    made = [
        kt.pinot.create_table(
            empty_lake(), CONFIG | {"upsertConfig": {"mode": "FULL", **said}}, SCHEMA
        )
        for said in (old, new)
    ]
    assert made[0].options == made[1].options


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comparisonColumn": "n", "comparisonColumns": ["ts"]},
         "gives 'comparisonColumns' as .*'ts'.* and, by its old name 'comparisonColumn', as 'n'"),
        ({"enableSnapshot": True, "snapshot": "DISABLE"}, "by its old name 'enableSnapshot'"),
        ({"enablePreload": False, "preload": "ENABLE"}, "by its old name 'enablePreload'"),
    ],
)  # fmt: skip
def test_spellings_that_disagree_are_refused(change: Change, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        make({f"upsertConfig.{name}": value for name, value in change.items()})


def test_documents_are_left_as_they_are() -> None:
    config, schema = changed(CONFIG, {"upsertConfig.comparisonColumn": "n"}), changed(SCHEMA, {})
    before = json.dumps([config, schema])
    kt.pinot.create_table(empty_lake(), config, schema)
    assert json.dumps([config, schema]) == before


NAMES = ["k", "n", "s", "ts", "x", "tags", "REALTIME", "PARTIAL", "FULL", "MAX", "true", "ENABLE"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=5,
)


def paths_of(document: Any, *, upto: int = 3) -> list[str]:
    """The paths of members of objects."""
    if not isinstance(document, dict) or upto == 0:
        return []
    inner = [f"{name}.{path}" for name in document for path in paths_of(document[name])]
    return [*document, *inner]


CONFIG_PATHS = [*paths_of(CONFIG), *(f"upsertConfig.{name}" for name in member_names(Upsert))]


@pytest.mark.takes_turns
@settings(max_examples=200)
@given(
    config=st.dictionaries(st.sampled_from(CONFIG_PATHS), JSON, max_size=2),
    schema=st.dictionaries(st.sampled_from(paths_of(SCHEMA)), JSON, max_size=1),
    column=st.dictionaries(st.sampled_from(member_names(Column)), JSON, max_size=2),
)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_any_member_makes_a_table_or_an_error_of_ours(
    config: Change, schema: Change, column: dict[str, Any]
) -> None:
    columns = [*SCHEMA["metricFieldSpecs"], {"name": "x", "dataType": "INT", **column}]
    # A longer path would lead into the value of a shorter one.
    config = {path: config[path] for path in config if not any(
        path.startswith(f"{other}.") for other in config)}  # fmt: skip
    with contextlib.suppress(kt.KeytideError):
        make(config, {"metricFieldSpecs": columns, **schema})
