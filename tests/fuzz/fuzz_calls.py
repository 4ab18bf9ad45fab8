"""Every public call with odd arguments: whatever is given, only Keytide's errors come out.

The calls are found by looking at the objects, so what is new is tried without a word here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import polars as pl
import pyarrow as pa
from fuzz_case import Case, Refused, brief
from fuzz_values import mutated, odd

import keytide as kt
import keytide.cdc
from keytide.definition import schema_evolution
from new_tables import fields_of

__all__ = ["run"]

_CALLS = 25

_FOR_OTHER_LAYERS = {"of"}
"""Methods of `Table` whose arguments only Keytide itself can make."""

_MADE_BY_CALLERS = {"Encoding", "FeedSpec", "Field", "SequenceSource"}
"""The classes that a caller makes; values of all others come from calls."""

_NEEDS_SPARK = {"to_spark", "spark"}

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("s", pa.int64())])
ROWS = [{"k": 1, "v": "a", "s": 1}, {"k": 2, "v": None, "s": 1}]


def run(case: Case) -> None:
    """A lake with a table, and some calls of anything that it offers."""
    lake = kt.connect(case.folder / "lake")
    table = lake.create_table("t", SCHEMA, ["k"], options={"sequence.field": "s"})
    table.write(ROWS)
    calls = list(_calls(lake, table))
    for _ in range(_CALLS):
        name, call = case.chance.choice(calls)
        _try(case, name, call)
    case.attempt("scan of the table", lambda: _rows_or_gone(lake))


def _rows_or_gone(lake: kt.Lake) -> Any:
    return lake.table("t").scan().to_pylist() if "default.t" in lake.tables() else None


def _calls(lake: kt.Lake, table: kt.Table) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in kt.__all__:
        if callable(found := getattr(kt, name)) and _is_made_by_callers(name, found):
            yield f"kt.{name}", found
    for name in keytide.cdc.__all__:
        if callable(found := getattr(keytide.cdc, name)) and _is_made_by_callers(name, found):
            yield f"cdc.{name}", found
    for name in schema_evolution.__all__:
        if dataclasses.is_dataclass(found := getattr(schema_evolution, name)):
            yield f"alter {name}", _altering(table, found)
    yield "kt.RowKind.parse", kt.RowKind.parse
    objects = {
        "lake": lake,
        "table": table,
        "scan": table.scan(),
        "result": lake.sql("SELECT k FROM t"),
        "why": table.why(1),
        "explanation": table.scan().explain(),
        "snapshot": table.snapshots()[0],
        "changes": table.changes(0),
        "compaction": table.compact(dry_run=True),
        "verification": table.verify(),
        "diagnosis": table.doctor(),
    }
    for role, value in objects.items():
        for name in dir(value):
            if name.startswith("_") or name in _FOR_OTHER_LAYERS | _NEEDS_SPARK:
                continue
            found = getattr(value, name)
            if callable(found) and getattr(found, "__self__", None) is value:
                yield f"{role}.{name}", _ending(found) if name == "follow" else found


def _is_made_by_callers(name: str, found: Any) -> bool:
    return not isinstance(found, type) or name in _MADE_BY_CALLERS


def _altering(table: kt.Table, change: Any) -> Callable[..., Any]:
    def alter(**named: Any) -> Any:
        return table.alter(change(**named))

    alter.__signature__ = inspect.signature(change)  # type: ignore[attr-defined]
    return alter


def _ending(follow: Callable[..., Any]) -> Callable[..., Any]:
    """A follower that does not wait for ever, as it should where nobody names a time."""

    def ending(**named: Any) -> Any:
        return follow(**named, timeout_seconds=0.01)

    found = inspect.signature(follow)
    kept = [p for p in found.parameters.values() if p.name != "timeout_seconds"]
    ending.__signature__ = found.replace(parameters=kept)  # type: ignore[attr-defined]
    return ending


def _try(case: Case, name: str, call: Callable[..., Any]) -> None:
    arguments, named = _arguments(case, name, call)
    told = ", ".join([*map(brief, arguments), *(f"{n}={brief(v)}" for n, v in named.items())])
    if not (case.folder / "lake/default.db/t").exists():
        case.count("dropped")  # scans made before stay in the dark, even when there is a new one
    # Neither may what was made before a purge look at the files of then.
    gone = not case.counts.keys().isdisjoint(["dropped", "purged"])
    found = case.attempt(f"{name}({told})", lambda: call(*arguments, **named), harmed=gone)
    if not isinstance(found, Refused):
        if name == "table.purge_files":
            case.count("purged")
        case.attempt(f"use of {name}({told})", lambda: _use(found), harmed=gone)


def _use(found: Any) -> None:
    """What a caller does next with what a call gave."""
    if isinstance(found, kt.Scan):
        found.to_arrow()
        found.count()
        found.explain()
    elif isinstance(found, kt.Lake):
        found.tables()
    elif isinstance(found, kt.Field):
        found.sql()
    elif inspect.isgenerator(found):
        for _ in found:
            pass
    repr(found)
    str(found)


def _arguments(case: Case, name: str, call: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that fit, but for one or two."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except ValueError:  # a function of C without a signature
        return [], {}
    parameters = [p for p in parameters if p.name not in ("store", "spark")]
    wrong = case.chance.sample(parameters, min(len(parameters), case.chance.choice([0, 1, 1, 2])))
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        is_given = parameter.default is parameter.empty or parameter in wrong or case.often(0.1)
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments += [odd(case.chance) for _ in range(case.chance.choice([0, 1, 2]))]
        elif parameter.kind is not parameter.VAR_KEYWORD and is_given:
            value = odd(case.chance) if parameter in wrong else _fitting(case, name, parameter.name)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                arguments.append(value)
            else:
                named[parameter.name] = value
    return arguments, named


def _fitting(case: Case, call: str, parameter: str) -> Any:
    """A value that a call of this name expects, or something near to it."""
    makers = _FITTING.get(f"{call} {parameter}") or _FITTING.get(parameter)
    if makers is None:
        return odd(case.chance)
    value = case.chance.choice(makers)
    value = value(case) if callable(value) and not isinstance(value, type) else value
    if isinstance(value, str) and case.often(0.2):
        return mutated(value, case.chance)
    return value


_WHERE = ["k = 1", "k in (1, 2)", "v like 'a%'", "v is null or s > 0", "not (k between 0 and 5)"]
_MESSAGE = '{"op": "c", "before": null, "after": {"id": 1, "v": "a"}, "source": {"lsn": 1}}'

_FITTING: dict[str, list[Any]] = {
    "warehouse": [lambda case: str(case.folder / "other"), lambda case: case.folder / "lake"],
    "path": [lambda case: case.folder / "lake/default.db/t"],
    "name": ["t", "n", "db.n", lambda case: f"n{case.chance.randrange(99)}"],
    "database": [None, "default"],
    "schema": [SCHEMA, SCHEMA.append(pa.field("x", pa.list_(pa.int32()))),
               lambda case: fields_of("k INT")],
    "primary_key": [["k"], ("k", "v")],
    "partition_by": [[], ["v"]],
    "options": [None, {"bucket": "2"}, {"sequence.field": "s"}],
    "comment": [None, "text"],
    "text": ["SELECT * FROM t", "INT", "+I", "SHOW TABLES"],
    "kt.connect options": [None, {}],
    "kt.open_table options": [None, {}],
    "kt.parse_sql_type text": ["INT", "ARRAY<INT>", "ROW<a INT>", "DECIMAL(10, 2) NOT NULL"],
    "kt.register_merge_function name": ["longest"],
    "function": [lambda case: lambda values: values.max()],
    "types": [["BIGINT"], ["STRING"]],
    "retract": [None, lambda case: lambda adds, retracts: adds],
    "examples": [(), [1]],
    "skip_nulls": [True, False],
    "data": [ROWS, [], [{"k": 3, "_row_kind": "-D"}], pa.Table.from_pylist(ROWS, SCHEMA),
             lambda case: pl.DataFrame(ROWS), lambda case: pl.DataFrame(ROWS).to_pandas()],
    "partition": [None],
    "commit_user": [None, "somebody"],
    "commit_identifier": [1, 2, 2**62],
    "user": ["somebody"],
    "identifier": [1, 7],
    "columns": [None, ["k"], ("v", "k")],
    "where": [None, *_WHERE],
    "snapshot_id": [None, 1],
    "tag": [None],
    "start": [None, 0, 1, "full", "latest"],
    "end": [None, 1],
    "mode": ["diff", "delta", "changelog"],
    "consumer": [None, "somebody"],
    "poll_seconds": [0.01],
    "stop": [None],
    "as_of": [None, datetime(2100, 1, 1, tzinfo=timezone.utc), 2**42, "2100-01-01"],
    "key": [1, (2,), {"k": 1}, 99],
    "id": [-1, 0],
    "type": [lambda case: kt.parse_sql_type("INT")],
    "root": ["INT", "CHAR"],
    "path_": [("v",)],
    "value": [0, "1", "1 kb"],
    "alter AddColumn path": [("x",)],
    "alter DropColumn path": [("v",)],
    "alter RenameColumn path": [("v",)],
    "alter ChangeColumnType path": [("k",), ("s",)],
    "alter SetOption key": ["bucket", "target-file-size", "read.memory"],
    "alter RemoveOption key": ["bucket", "sequence.field"],
    "new_name": ["v", "w"],
    "nullable": [True],
    "position": [None, schema_evolution.First(), schema_evolution.After("k")],
    "messages": [lambda case: pa.array([_MESSAGE]), lambda case: pa.array([_MESSAGE.encode()])],
    "spec": [lambda case: _feed_spec()],
    "format": ["debezium-json", "maxwell-json", "canal-json", "dms-json", "json"],
    "cdc.FeedSpec columns": [lambda case: _feed_spec().columns],
    "cdc.FeedSpec primary_key": [("id",)],
    "sequence": [()],
    "column": ["s"],
    "encoding": [None],
    "empty_as_null": [frozenset(), frozenset({"v"})],
    "missing_ok": [True],
    "exists_ok": [True],
}  # fmt: skip


def _feed_spec() -> keytide.cdc.FeedSpec:
    fields = (
        kt.Field(-1, "id", kt.parse_sql_type("INT")),
        kt.Field(-1, "v", kt.parse_sql_type("STRING")),
    )
    return keytide.cdc.FeedSpec("debezium-json", fields, ("id",))
