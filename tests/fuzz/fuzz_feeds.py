"""Messages of change feeds: a source with a history, some of whose messages are damaged.

Every message is applied, or rejected with a reason; a damaged one changes nothing of what its
neighbours say; and a table that takes what was decoded shows the rows of the source.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from fuzz_case import Case, Refused, brief
from fuzz_values import TEXTS, mutated

import keytide as kt
from keytide import cdc
from keytide.feeds.formats import DELETED

__all__ = ["run"]

_COLUMNS: dict[str, list[Any]] = {
    "INT": [0, 1, -1, 2**31 - 1, None],
    "BIGINT": [0, -(2**63), 2**63 - 1, None],
    "STRING": ["", "a", "ü", "\U0001f600", "null", '"', "\\", "1", None],
    "BOOLEAN": [True, False, None],
    "DOUBLE": [0.5, -1e300, 0, None],
    "DECIMAL(10, 2)": ["1.50", "-0.01", "99999999.99", None],
    "DATE": [0, 19_000, -1, None],
    "TIMESTAMP(3)": [0, 1_700_000_000_123, None],
    "TIMESTAMP(6)": [0, -1, 1_700_000_000_123_456, None],
    "BYTES": ["", "AP8=", None],
    "ARRAY<INT>": [[], [1, None], None],
    "MAP<STRING, INT>": [{}, {"a": 1}, None],
    "ROW<a INT, b STRING>": [{"a": 1, "b": None}, None],
    "TIME(3)": [0, 86_399_999, None],
    "VARCHAR(3)": ["abc", "", None],
    "FLOAT": [0.5, None],
}
_KEYS = {"INT": [1, 2, 3], "STRING": ["a", "b", ""], "BIGINT": [1, 2**62]}
_ENCODED_ALIKE = {"INT", "BIGINT", "STRING", "VARCHAR(3)", "BOOLEAN"}
"""Types whose values come out as they went in, so that rows can be compared."""

Row = dict[str, Any]


def run(case: Case) -> None:
    """One feed, its messages whole and then damaged."""
    chance = case.chance
    format = chance.choice(list(_MESSAGE))
    kinds = {f"c{i}": chance.choice(list(_COLUMNS)) for i in range(chance.choice([1, 2, 4]))}
    key_kind = chance.choice(list(_KEYS))
    spec = _spec(format, {"id": key_kind, **kinds}, chance)
    changes = _history(chance, key_kind, kinds)
    whole = [json.dumps(_MESSAGE[format](*change)) for change in changes]
    decoded = case.attempt(f"decode {format} {brief(whole)}", lambda: _decoded(whole, spec))
    if isinstance(decoded, Refused):
        return
    if decoded.rejected.num_rows:
        case.note("rows", "a good message is rejected", brief(decoded.rejected.to_pylist()))
        return
    _apply(case, spec, decoded.rows, _expected(changes, kinds))
    _damage(case, spec, whole, decoded)
    _infer(case, format, whole)


def _spec(format: str, kinds: dict[str, str], chance: random.Random) -> cdc.FeedSpec:
    fields = tuple(kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in kinds.items())
    encoding = cdc.Encoding(time_unit="precision", timestamp_unit="precision")
    if format == "debezium-json" and chance.random() < 0.3:
        encoding = cdc.debezium_encoding(
            decimal_handling_mode=chance.choice(["string", "double"]),
            binary_handling_mode=chance.choice(["bytes", "base64"]),
        )
    return cdc.FeedSpec(
        format, fields, ("id",), encoding=encoding, before_images=chance.random() < 0.3
    )


# -- a source --------------------------------------------------------------------------------------


def _history(
    chance: random.Random, key_kind: str, kinds: dict[str, str]
) -> list[tuple[str, Row | None, Row | None]]:
    """Changes of a table of a source: what was done, the row before and the row after."""
    rows: dict[Any, Row] = {}
    changes: list[tuple[str, Row | None, Row | None]] = []
    for _ in range(chance.choice([0, 1, 3, 8])):
        key = chance.choice(_KEYS[key_kind])
        row = {"id": key, **{n: chance.choice(_COLUMNS[k]) for n, k in kinds.items()}}
        if key not in rows:
            changes.append(("insert", None, row))
            rows[key] = row
        elif chance.random() < 0.3:
            changes.append(("delete", rows.pop(key), None))
        else:
            changes.append(("update", rows[key], row))
            rows[key] = row
    return changes


def _debezium(action: str, before: Row | None, after: Row | None) -> Any:
    return {"op": action[0].replace("i", "c"), "before": before, "after": after}


def _maxwell(action: str, before: Row | None, after: Row | None) -> Any:
    old = None
    if action == "update" and before is not None and after is not None:
        old = {name: value for name, value in before.items() if value != after[name]}
    return {"type": action, "data": before if action == "delete" else after, "old": old}


def _canal(action: str, before: Row | None, after: Row | None) -> Any:
    old = [before] if action == "update" else None
    rows = [before if action == "delete" else after]
    return {"type": action.upper(), "data": rows, "old": old, "isDdl": False}


def _dms(action: str, before: Row | None, after: Row | None) -> Any:
    data = before if action == "delete" else after
    message = {"data": data, "metadata": {"record-type": "data", "operation": action}}
    return {**message, "before-image": before} if action == "update" else message


def _json_row(action: str, before: Row | None, after: Row | None) -> Any:
    return {**(before or {}), DELETED: True} if after is None else after


_MESSAGE: dict[str, Callable[[str, Row | None, Row | None], Any]] = {
    "debezium-json": _debezium,
    "maxwell-json": _maxwell,
    "canal-json": _canal,
    "dms-json": _dms,
    "json": _json_row,
}
assert _MESSAGE.keys() == cdc.FORMATS.keys()


def _expected(
    changes: list[tuple[str, Row | None, Row | None]], kinds: dict[str, str]
) -> list[str]:
    rows: dict[Any, Row] = {}
    for _, before, after in changes:
        if before is not None:
            rows.pop(before["id"], None)
        if after is not None:
            rows[after["id"]] = after
    return _told(list(rows.values()), kinds)


def _told(rows: list[Row], kinds: dict[str, str]) -> list[str]:
    names = ["id", *(name for name, kind in kinds.items() if kind in _ENCODED_ALIKE)]
    gaps = [name for name, kind in kinds.items() if kind not in _ENCODED_ALIKE]
    return sorted(
        repr([*(row[name] for name in names), *(row[name] is None for name in gaps)])
        for row in rows
    )


# -- decoding and applying -------------------------------------------------------------------------


def _decoded(messages: list[Any], spec: cdc.FeedSpec) -> cdc.Decoded:
    is_bytes = any(isinstance(message, bytes) for message in messages)
    if is_bytes:
        messages = [m.encode() if isinstance(m, str) else m for m in messages]
    return cdc.decode(pa.array(messages, pa.binary() if is_bytes else pa.string()), spec)


def _apply(case: Case, spec: cdc.FeedSpec, rows: pa.Table, wanted: list[str] | None) -> None:
    lake = case.lake(f"lake{case.chance.random()}")
    table = lake.create_table("t", spec.columns, spec.primary_key)
    given = rows.select([*(f.name for f in spec.columns), cdc.ROW_KIND_COLUMN])
    written = case.attempt(f"write {brief(given)}", lambda: table.write(given))
    found = case.attempt("scan", lambda: table.scan().to_arrow())
    if isinstance(written, Refused) or isinstance(found, Refused):
        case.note("rows", "decoded rows are refused", brief(given))
    elif wanted is not None:  # Python has no words for every time that Arrow has
        kinds = {f.name: f.type.sql() for f in spec.columns if f.name != "id"}
        if (told := _told(found.to_pylist(), kinds)) != wanted:
            case.note("rows", f"{spec.format} applied", f"{brief(told)}, expected {brief(wanted)}")


def _damage(case: Case, spec: cdc.FeedSpec, whole: list[str], decoded: cdc.Decoded) -> None:
    """Damage some messages: each is counted once, and the others say what they said."""
    chance = case.chance
    messages: list[Any] = list(whole)
    damaged = set()
    for _ in range(chance.choice([1, 2, 5])):
        i = chance.randrange(len(messages) + 1)
        source = messages.pop(i) if i < len(messages) and i not in damaged else None
        damaged = {j - (source is not None) if j > i else j for j in damaged}
        bad = _damaged(
            source if isinstance(source, str) else chance.choice(whole or ["{}"]), chance
        )
        messages.insert(i, bad)
        damaged = {j + 1 if j >= i else j for j in damaged} | {i}
    found = case.attempt(
        f"decode {spec.format} {brief(messages)}", lambda: _decoded(messages, spec)
    )
    if isinstance(found, Refused):
        return
    applied = set(found.rows[cdc.ORDINAL_COLUMN].to_pylist())
    rejected = found.rejected["ordinal"].to_pylist()
    counted = len(applied) + len(rejected) + found.tombstones + found.control
    if counted != len(messages) or applied & set(rejected) or len(set(rejected)) < len(rejected):
        case.note("rows", "messages are not counted once", f"{spec.format} {brief(messages)}")
    if not all(reason for reason in found.rejected["reason"].to_pylist()):
        case.note("rows", "rejected without a reason", f"{spec.format} {brief(messages)}")
    good = [i for i in range(len(messages)) if i not in damaged]
    if wrong := [i for i in good if i in rejected]:
        case.note("rows", "a good message is rejected beside a bad one",
                  f"{spec.format} {brief(wrong)} of {brief(messages)}")  # fmt: skip
    _compare_alone(case, spec, messages, good, found)
    _apply(case, spec, found.rows, None)


def _compare_alone(
    case: Case, spec: cdc.FeedSpec, messages: list[Any], good: list[int], found: cdc.Decoded
) -> None:
    alone = _decoded([messages[i] for i in good], spec).rows.drop_columns([cdc.ORDINAL_COLUMN])
    mask = pa.compute.is_in(found.rows[cdc.ORDINAL_COLUMN], pa.array(good, pa.int64()))
    beside = found.rows.filter(mask).drop_columns([cdc.ORDINAL_COLUMN])
    if repr(alone.to_pylist()) != repr(beside.to_pylist()):
        case.note(
            "rows", "a bad message changes its neighbours", f"{spec.format} {brief(messages)}"
        )


def _infer(case: Case, format: str, whole: list[str]) -> None:
    messages = [_damaged(m, case.chance) if case.often(0.3) else m for m in whole]
    is_bytes = any(isinstance(message, bytes) for message in messages)
    given = [m.encode() if is_bytes and isinstance(m, str) else m for m in messages]
    sample = pa.array(given, pa.binary() if is_bytes else pa.string())
    for infer in (cdc.infer_columns, cdc.infer_primary_key, cdc.default_sequence):
        told = f"{infer.__name__} {format} {brief(messages)}"
        case.attempt(told, lambda infer=infer: infer(sample, format))


# -- damage ----------------------------------------------------------------------------------------

_ODD_VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 1e300, 10**30, "", "x", [], {}, [[]], [None], {"": None},
    {"a": {"b": 1}},
    [1, "a"], {"id": None}, [{"id": 1}], "1", "-0", "1e5", "NaN", "AA==", "2024-01-01", *TEXTS[:12],
]  # fmt: skip


def _damaged(text: str, chance: random.Random) -> str | bytes | None:
    kind = chance.choice(["value", "value", "value", "drop", "rename", "text", "bytes", "whole"])
    if kind == "bytes":
        raw = bytearray(text.encode())
        for _ in range(chance.choice([1, 3])):
            if raw:
                raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        return bytes(raw)
    if kind == "text":
        return mutated(text, chance).encode("utf-8", "replace").decode()
    if kind == "whole":
        odd = ["", "null", "[]", "5", "{", '"x"', "{}", "[" * 5_000,
               '{"a":' * 2_000 + "1" + "}" * 2_000,
               "NaN", "\0", '{"op":"c","after":{"id":1e400}}', '{"a":1,"a":2}', None]  # fmt: skip
        return chance.choice(odd)
    tree = json.loads(text)
    _damage_tree(tree, kind, chance)
    return json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf-8", "replace").decode()


def _damage_tree(tree: Any, kind: str, chance: random.Random) -> None:
    """Change, drop or rename one member, somewhere."""
    places = list(_places(tree))
    if not places:
        return
    holder, name = chance.choice(places)
    if kind == "value":
        holder[name] = chance.choice(_ODD_VALUES)
    elif kind == "drop":
        del holder[name]
    elif isinstance(holder, dict):
        holder[chance.choice([*TEXTS[:8], "id", "op", "c0"])] = holder.pop(name)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    members = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, value in list(members):
        found.append((tree, name))
        if isinstance(value, dict | list):
            found += _places(value)
    return found
