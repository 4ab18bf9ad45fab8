"""Every option that is accepted acts, warns or is refused; the document says which."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.definition.__main__ import document
from keytide.definition.schema_evolution import RemoveOption, SetOption
from keytide.format import paths
from keytide.merge.engines import engines_with
from keytide.options import SECTIONS, ForOthers, Option, Refused, TableOptions, stored_name
from keytide.options.features import feature_of
from keytide.options.values import ACTS
from new_tables import empty_lake, empty_table

ROWS = [option for options in SECTIONS.values() for option in options]
TYPED = {
    spec.metadata["option"].key: spec.name
    for spec in fields(TableOptions)
    if "option" in spec.metadata
}
COLUMNS = "k INT, a INT, b INT, s STRING"


def new_table(options: Mapping[str, str], columns: str = COLUMNS) -> kt.Table:
    pairs = re.findall(r"(\w+) ([A-Z]+(?:<.*?>+)?)(?:, |$)", columns)
    schema = [kt.Field(-1, name, kt.parse_sql_type(text)) for name, text in pairs]
    return empty_lake().create_table("t", schema, ["k"], options=options)


def key_of(option: Option) -> str:
    return re.sub(r"<\w+>", lambda place: "a" if "column" in place[0] else "x", option.key)


def other_value(option: Option) -> str:
    """A value that is not the default."""
    samples = (
        text for text in option.type.samples if option.parse("", text) != option.default_value
    )
    return next(samples, option.type.samples[0])


# -- names and values ------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ROWS, ids=lambda option: option.key)
def test_other_spellings_of_a_name_are_stored_in_the_format_s_own(option: Option) -> None:
    key = key_of(option)
    head, _, rest = key.partition(".")
    for spelt in (key, key.replace("-", "_"), f"{head.upper()}.{rest}" if rest else head.upper()):
        assert stored_name(spelt) == key
    if not option.has_place:
        assert stored_name(key.replace(".", "_")) == key
    for alias in option.aliases:
        assert stored_name(alias) == key


def test_names_of_columns_in_a_name_stay_as_they_are() -> None:
    spelt = "FIELDS.Net_Worth-a.Aggregate_Function"
    assert stored_name(spelt) == "fields.Net_Worth-a.aggregate-function"
    assert stored_name("fields.default.aggregate_function") == "fields.default.aggregate-function"
    assert stored_name("fields.default_aggregate_function") == "fields.default-aggregate-function"
    assert stored_name("user.Team_Name") == "user.Team_Name"


def test_table_is_made_altered_and_reset_by_any_spelling() -> None:
    table = new_table({"merge_engine": "aggregation", "FIELDS.a.aggregate_function": "sum"})
    assert table.options["merge-engine"] == "aggregation"
    assert table.options["fields.a.aggregate-function"] == "sum"
    table.alter(SetOption("Target_File_Size", "1 mb"))
    assert table.options["target-file-size"] == "1 mb"
    table.alter(RemoveOption("TARGET_file-size"))
    assert "target-file-size" not in table.options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge-engin": "first-row"}, "unknown option 'merge-engin'; did you mean 'merge-engine'"),
        ({"fields.a.agregate": "sum"}, "unknown option .*start with 'user.'"),
        ({"merge-engine": "aggregation", "merge_engine": "first-row"}, "give it once"),
        ({"primary-key": "a"}, r"primary_key is \(k\), but the options say \(a\)"),
        ({"fields.a,b.aggregate-function": "sum"}, "names 2 columns; give it once for each"),
        ({"target-file-size": "0 b"}, "at least 1 bytes"),
        ({"bucket": "1" + "0" * 20}, "'bucket' has the value"),
        ({"bucket": "1_0"}, "'bucket' has the value"),
        ({"commit.max-retries": "9" * 5000}, "an integer from 0"),
        ({"read.memory": "99999999999 tb"}, r"below 2\^63"),
    ],
)  # fmt: skip
def test_what_is_no_option_is_refused(options: Any, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        new_table(options)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "option", [o for o in ROWS if o.type.wrong is not None], ids=lambda option: option.key
)
def test_value_that_does_not_parse_is_refused_by_create_and_alter(option: Option) -> None:
    wrong, key = option.type.wrong, key_of(option)
    assert wrong is not None
    with pytest.raises(kt.InvalidError, match=re.escape(f"option {key!r} has the value {wrong!r}")):
        new_table({key: wrong})
    table = new_table({})
    with pytest.raises(kt.InvalidError, match=re.escape(f"option {key!r} has the value {wrong!r}")):
        table.alter(SetOption(key, wrong))
    assert table.table_schema.id == 0


# -- what is done with an option -------------------------------------------------------------------

NOT_ACTING = [
    pytest.param(option, value, id=f"{option.key}={value}")
    for option in ROWS
    for value in (option.type.samples if option.uses else option.type.samples[:2])
    if option.use_of(value) != ACTS
]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("option", "value"), NOT_ACTING)
def test_option_that_keytide_leaves_to_others_warns_or_is_refused(
    option: Option, value: str
) -> None:
    use, key = option.use_of(value), key_of(option)
    needs = {
        "sequence.snapshot-ordering": {"write-only": "true"},
        "record-level.expire-time": {"record-level.time-field": "a"},
        "pk-clustering-override": {},
    }.get(option.key, {})
    for act in (
        lambda: new_table({key: value, **needs}),
        lambda: new_table(needs).alter(SetOption(key, value)),
    ):
        if isinstance(use, Refused):
            with pytest.raises((kt.UnsupportedError, kt.InvalidError), match=re.escape(key)):
                act()
            continue
        assert isinstance(use, ForOthers)
        with pytest.warns(kt.KeytideWarning, match=re.escape(f"ignores '{key}'")) as caught:
            act()
        assert any(use.here in str(warning.message) for warning in caught)
        assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("option", ROWS, ids=lambda option: option.key)
def test_default_is_neither_warned_of_nor_refused(option: Option) -> None:
    if option.default is None or engines_with(option.key) or option.has_place:
        return
    if option.used_with or option.key == "type":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_table({option.key: option.default})


def test_tables_of_other_engines_are_opened_and_altered_without_a_word() -> None:
    table = new_table({})
    table.write([{"k": 1, "a": 1, "b": 1, "s": "x"}])
    others = (o for o in ROWS if isinstance(o.use, ForOthers | Refused))
    kept = {key_of(o): other_value(o) for o in others if feature_of(o.key) is None}
    kept.pop("streaming-read-overwrite")  # which goes with no lookup
    options = table.options | kept | {"write-only": "true"}
    options |= {
        "changelog-producer": "lookup",
        "sink.parallelism": "4",
        "page-size": "?",
    }
    schema = replace(table.table_schema, id=1, options=options)
    table.metadata.store.create(paths.schema_path(1), schema.to_json())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table.scan().to_pylist() == [{"k": 1, "a": 1, "b": 1, "s": "x"}]
        table.write([{"k": 2, "a": 1, "b": 1, "s": "x"}])
        table.alter(SetOption("target-file-size", "1 mb"), RemoveOption("consumer-id"))
    assert table.scan().count() == 2


def test_option_that_means_nothing_to_the_merge_engine_warns() -> None:
    with pytest.warns(kt.KeytideWarning, match=r"'fields.a.aggregate-function' has no effect"):
        new_table({"fields.a.aggregate-function": "sum"})


def test_option_that_means_nothing_to_the_merge_function_warns() -> None:
    options = {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum"}
    with pytest.warns(kt.KeytideWarning, match=r"'fields.a.distinct' has no effect: .* 'sum'"):
        new_table({**options, "fields.a.distinct": "true"})


# -- what acts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", TYPED)
def test_option_that_acts_is_typed(key: str) -> None:
    option = next(option for option in ROWS if option.key == key)
    before, after = TableOptions(), TableOptions.parse({key: other_value(option)})
    assert getattr(before, TYPED[key]) == option.default_value
    assert getattr(after, TYPED[key]) != option.default_value


@dataclass(frozen=True)
class Effect:
    """What a table shows with an option that it does not show without."""

    columns: str
    option: str
    value: str
    base: Mapping[str, str]
    commits: list[dict[str, Any]]
    shows: Any


FOLD = {"merge-engine": "aggregation"}
GROUPS = {"merge-engine": "partial-update"}


def folding(function: str, **more: str) -> dict[str, str]:
    return {
        **FOLD,
        "fields.v.aggregate-function": function,
        **{f"fields.v.{k.replace('_', '-')}": v for k, v in more.items()},
    }


def versions(*values: Any, **last: Any) -> list[dict[str, Any]]:
    rows = [{"k": 1, "v": value} for value in values]
    return [*rows[:-1], {**rows[-1], **last}]


NESTED = "k INT, v ARRAY<ROW<x INT, y INT>>"
MAP = "k INT, v MAP<INT, ROW<x INT, y INT>>"


def row(x: int | None, y: int | None) -> list[dict[str, Any]]:
    return [{"x": x, "y": y}]


def pair(x: int, y: int) -> list[tuple[int, dict[str, Any]]]:
    return [(1, {"x": x, "y": y})]


EFFECTS = {
    "fields.<column>.aggregate-function":
        Effect("k INT, v INT", "fields.v.aggregate-function", "sum", FOLD, versions(1, 2), 3),
    "fields.<columns>.sequence-group":
        Effect("k INT, g INT, v INT", "fields.g.sequence-group", "v", GROUPS,
               [{"k": 1, "g": 5, "v": 1}, {"k": 1, "g": 3, "v": 2}], 1),
    "fields.<column>.ignore-retract":
        Effect("k INT, v INT", "fields.v.ignore-retract", "true", folding("sum"),
               versions(5, 2, _row_kind="-D"), 5),
    "fields.<column>.count-values":
        Effect("k INT, v INT", "fields.v.count-values", "true", folding("sum"),
               versions(7, 9), 2),
    "fields.<column>.distinct":
        Effect("k INT, v STRING", "fields.v.distinct", "true", folding("listagg"),
               versions("a", "a"), "a"),
    "fields.<column>.list-agg-delimiter":
        Effect("k INT, v STRING", "fields.v.list-agg-delimiter", ";", folding("listagg"),
               versions("a", "b"), "a;b"),
    "fields.<column>.nested-key":
        Effect(NESTED, "fields.v.nested-key", "x", folding("nested_update"),
               versions(row(1, 1), row(1, 2)), row(1, 2)),
    "fields.<column>.nested-sequence-field":
        Effect(NESTED, "fields.v.nested-sequence-field", "y",
               folding("nested_update", nested_key="x"), versions(row(1, 5), row(1, 2)), row(1, 5)),
    "fields.<column>.nested-key-null-strategy":
        Effect(NESTED, "fields.v.nested-key-null-strategy", "ignore",
               folding("nested_update", nested_key="x"),
               versions(row(1, 5), row(None, 2)), row(1, 5)),
    "fields.<column>.count-limit":
        Effect(NESTED, "fields.v.count-limit", "1", folding("nested_update"),
               versions(row(1, 5), row(2, 2)), row(1, 5)),
    "fields.<column>.merge-map-with-keytime.ts-field":
        Effect(MAP, "fields.v.merge-map-with-keytime.ts-field", "x",
               folding("merge_map_with_keytime"), versions(pair(5, 1), pair(3, 2)), pair(5, 1)),
    "fields.<column>.ts-field":
        Effect(MAP, "fields.v.ts-field", "x", folding("merge_map_with_keytime"),
               versions(pair(5, 1), pair(3, 2)), pair(5, 1)),
    "fields.<column>.post-merge-expression":
        Effect("k INT, v INT", "fields.v.post-merge-expression", "k + 6",
               {"upsert.mode": "partial"}, versions(1, 2), 7),
    "fields.<columns>.default-value":
        Effect("k INT, v INT", "fields.v.default-value", "7", {}, versions(None), 7),
}  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
def test_option_of_a_column_acts(effect: Effect) -> None:
    shown = []
    for options in (effect.base, {**effect.base, effect.option: effect.value}):
        table = new_table(options, effect.columns)
        for each in effect.commits:
            table.write([each])
        (found,) = table.scan(columns=["v"]).to_pylist() or [{"v": None}]
        shown.append(found["v"])
    assert shown[1] == effect.shows
    assert shown[0] != effect.shows


def test_every_option_that_acts_is_tested_above() -> None:
    acting = {option.key for option in ROWS if option.use == ACTS and not option.uses}
    elsewhere = {"primary-key", "partition", "user.<name>"}
    elsewhere |= {"constraint.<name>", "generated.<column>"}  # see the tests of their own
    elsewhere |= {"upsert.primary-key"}  # where an index of keys goes by the key
    # What reads show is the same with and without filters: see test_file_filters.py.
    elsewhere |= {f"file-index.bloom-filter.<column>.{setting}" for setting in ("fpp", "items")}
    assert acting - set(TYPED) - set(EFFECTS) == elsewhere


def test_keys_among_the_options_are_the_keys() -> None:
    options = {"primary_key": "p,k", "partition": "p"}
    table = empty_table("p INT, k INT, v INT", [], options=options)
    assert (table.primary_key, table.partition_by) == (("p", "k"), ("p",))
    assert not {"primary-key", "partition"} & set(table.options)


def test_properties_of_one_s_own_are_kept_and_mean_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = new_table({"user.team": "sales"})
        table.alter(SetOption("user.merge-engine", "none"))
    assert table.options["user.team"] == "sales"
    assert table.options["user.merge-engine"] == "none"


def test_document_is_up_to_date() -> None:
    """`python -m keytide.definition > docs/options.md` makes it so."""
    path = Path(__file__).parents[2] / "docs/options.md"
    assert path.read_text("utf-8") == document()
