"""Nothing given to a public call, on every kind of table: an answer, or an error of Keytide."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.int64())])
KINDS: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "keyed": (["k"], [], {}),
    "two columns of a key": (["k", "p"], [], {}),
    "partitions": (["k", "p"], ["p"], {}),
    "keys that move": (["k"], ["p"], {"bucket": "-1"}),
    "sums": (["k"], [], {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}),
    "deletion vectors": (["k"], [], {"deletion-vectors.enabled": "true"}),
    "append": ([], [], {}),
    "append with partitions": ([], ["p"], {}),
    "append with deletion vectors": ([], [], {"deletion-vectors.enabled": "true"}),
}
OF_TEXT = ["", " ", ",", ";"]
OF_MANY: list[Any] = [[], ()]
NOTHING: dict[str, list[Any]] = {
    "Sequence": OF_MANY, "Iterable": OF_MANY, "Collection": OF_MANY, "Mapping": [{}],
    "str": OF_TEXT,
    "Any": [[], {}, (), "", None, pa.table({}), SCHEMA.empty_table(), pl.DataFrame(),
            pa.RecordBatch.from_pylist([], SCHEMA), iter(())],
}  # fmt: skip
SOMETHING: dict[str, Any] = {
    "on": "target.k = source.k", "source": [{"k": 1, "p": "a", "v": 1}], "set": {"v": 1},
    "set_": {"v": 1}, "rows": [{"k": 1, "p": "a", "v": 1}], "key": 1, "keys": [1], "name": "x",
    "tag": "x", "start": 0, "consumer": "x", "snapshot": 1, "snapshot_id": 1, "changes": [],
    "new_name": "y", "to": 1, "partition": {"p": "a"}, "partitions": ["p=a"], "options": {},
    "order_by": ["v"], "branch": "x", "next_snapshot": 1,
}  # fmt: skip
# They open another table or session, wait, or are checked by other tests with arguments of theirs.
LEFT_OUT = {"follow"}


def calls(of: type) -> Iterator[tuple[str, str]]:
    """The public methods, each with every parameter that may be given nothing."""
    for name, method in inspect.getmembers(of, inspect.isfunction):
        if not name.startswith("_") and name not in LEFT_OUT:
            for parameter in inspect.signature(method).parameters.values():
                if any(word in str(parameter.annotation) for word in NOTHING):
                    yield name, parameter.name


def arguments(method: Any, empty: str) -> Iterator[dict[str, Any]]:
    """What to call a method with: nothing for one parameter, something for those it must have."""
    parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    needed = {p.name: SOMETHING.get(p.name, 1) for p in parameters
              if p.default is p.empty and p.kind is not p.VAR_KEYWORD}  # fmt: skip
    annotation = str(next(p for p in parameters if p.name == empty).annotation)
    for word, values in NOTHING.items():
        for value in values if word in annotation else ():
            yield {**needed, empty: value}


def raw_error(method: Any, given: dict[str, Any]) -> str:
    """What comes out of a call besides answers and errors of Keytide."""
    try:
        answer = method(**given)
        if isinstance(answer, kt.MergeBuilder):
            answer.when_not_matched_insert_all().execute()
        elif hasattr(answer, "to_arrow"):
            answer.to_arrow()
    except kt.KeytideError:
        return ""
    except Exception as error:
        return f"{given}: {type(error).__name__}: {error}"
    return ""


def raw_errors(method: Any, empty: str) -> list[str]:
    return [error for given in arguments(method, empty) if (error := raw_error(method, given))]


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, warehouse: str) -> kt.Table:
    key, partitions, options = KINDS[request.param]
    table = kt.connect(warehouse).create_table("t", SCHEMA, key, partitions, options=options)
    table.write([{"k": 1, "p": "a", "v": 1}])
    return table


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_nothing_given_to_a_table_is_answered_or_refused(table: kt.Table) -> None:
    found = {}
    for name, parameter in calls(kt.Table):
        errors = raw_errors(getattr(table, name), parameter)
        if errors:
            found[f"{name}({parameter})"] = errors
    assert found == {}


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_nothing_given_to_a_lake_is_answered_or_refused(lake: kt.Lake) -> None:
    lake.create_table("t", SCHEMA, ["k"]).write([{"k": 1, "p": "a", "v": 1}])
    found = {}
    for name, parameter in calls(kt.Lake):
        errors = raw_errors(getattr(lake, name), parameter)
        if errors:
            found[f"{name}({parameter})"] = errors
    assert found == {}


def test_nothing_is_looked_up_only_by_a_key(table: kt.Table) -> None:
    keys = table.scan().view.schema.primary_keys
    if keys:
        assert table.get_many([]).num_rows == 0
        assert table.get_many([]).schema == table.scan().schema
    else:
        with pytest.raises(kt.UnsupportedError, match="primary key"):
            table.get_many([])
