"""Odd values of every kind, and values that a public call expects, each made anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

__all__ = ["mutated", "odd", "odd_text"]


class _RaisingMapping(Mapping[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise ZeroDivisionError("getitem")

    def __iter__(self) -> Iterator[Any]:
        raise ZeroDivisionError("iter")

    def __len__(self) -> int:
        return 1


class _RaisingSequence(Sequence[Any]):
    def __getitem__(self, key: Any) -> Any:
        raise ZeroDivisionError("getitem")

    def __len__(self) -> int:
        return 3


class _Raising:
    def _fail(self, *given: Any) -> Any:
        raise ZeroDivisionError("a method of the caller's own")

    __bool__ = __eq__ = __hash__ = __iter__ = __len__ = __repr__ = __str__ = _fail  # type: ignore[assignment]
    __lt__ = __getitem__ = __index__ = __float__ = __contains__ = __add__ = _fail  # type: ignore[assignment]
    __fspath__ = __call__ = __array__ = __arrow_c_stream__ = _fail


class _AnyAttribute:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self


class _Text(str):
    """A text whose methods are somebody else's."""

    __slots__ = ()

    def split(self, *given: Any) -> Any:
        raise ZeroDivisionError("split")


def _closed_reader() -> Any:
    reader = pa.RecordBatchReader.from_batches(pa.schema([("k", pa.int64())]), iter([]))
    reader.close()
    return reader


def _failing_reader() -> Any:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": pa.array([1], pa.int64())})
        raise ZeroDivisionError("while it is read")

    return pa.RecordBatchReader.from_batches(pa.schema([("k", pa.int64())]), batches())


def _nested(depth: int, kind: type = list) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"k": value}
    return value


def _itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


TEXTS = [
    "", " ", "\0", "a\0b", "\ud800", "k\udfff", "k" * 70_000, "ü" * 300, "'", '"', "`", "k'", ";",
    "/", "..", ".", "a.b.c", "../../x", "a/b", "%", "%s", "{}", "\\", "\n", "NULL", "NaN", "-0.0",
    "1e400", "9" * 400, "0x1", "k = 1", "k =", "k = '\\'", "\u202e", "\U0010ffff", "é", "e\u0301",
    "İ", "ß", "_row_kind", "_SEQUENCE_NUMBER", "t$snapshots", "t$", "$", "default.t", "DEFAULT.T",
    "2024-01-01", "2024-13-45T99:99", "0000-00-00", "9999-12-31T23:59:59.999999999+18:00", "+I",
    "true", "1 kb", "-1", "٣", "1_000", "\x1b[0m", "file:///nowhere", "memory://x", "con", "~",
]  # fmt: skip

_ODD: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: 0, lambda: -1, lambda: 1, lambda: 2**31, lambda: 2**63,
    lambda: -(2**63) - 1, lambda: 10**400, lambda: 1.5, lambda: -0.0, lambda: float("nan"),
    lambda: float("inf"), lambda: 1e308, lambda: 1j, lambda: Decimal("1.5"), lambda: Decimal("NaN"),
    lambda: Decimal("1e9999"), lambda: Fraction(1, 3), lambda: b"", lambda: b"\xff\x00",
    lambda: bytearray(b"k"), lambda: memoryview(b"k"), list, lambda: (), dict,
    lambda: set(), lambda: {"k"}, lambda: frozenset({1}), lambda: [[]], lambda: [None],
    lambda: [1, "a"], lambda: ["k", "k"], lambda: ["k", None], lambda: [["k"]], lambda: ("k",),
    lambda: {"k": 1}, lambda: {"k": None}, lambda: {1: "k"}, lambda: {None: None},
    lambda: {"k": {"k": {}}}, lambda: [{}], lambda: [{"k": 1}, None], lambda: [{"k": 1}, 5],
    lambda: [{1: 1}], lambda: [{b"k": 1}], lambda: [{"k": {"a": 1}}], lambda: [{"k": [1, "x"]}],
    lambda: [{"k": object()}], lambda: [{"k": 1, "\ud800": 1}], lambda: [{"k": "\ud800"}],
    lambda: [{"k": 1, "v": "\ud800", "s": 1}], lambda: [{"k": 2**80, "v": None, "s": 1}],
    lambda: [{"k": Decimal("NaN"), "v": None, "s": 1}], lambda: [{"k": 1, "v": _Raising()}],
    lambda: [{"k": 1, "_row_kind": 3}], lambda: [{("k",): 1}], lambda: _nested(5),
    lambda: _nested(2_000), lambda: [_nested(300, dict)], lambda: [{"k": _nested(200)}],
    lambda: [{"k": 1, "v": _nested(5_000)}], lambda: [{"k": 1, "v": _itself()}], _itself,
    lambda: _nested(5_000, dict), lambda: range(3), lambda: (i for i in "k"), lambda: iter([]),
    lambda: iter([{"k": 1}]), lambda: "abc".upper, lambda: len, lambda: object(), lambda: int,
    lambda: type(None), lambda: Ellipsis, lambda: NotImplemented, lambda: ValueError("k"),
    _Raising, _RaisingMapping, _RaisingSequence, _AnyAttribute, lambda: _Text("k"),
    lambda: [_Raising()], lambda: {"k": _Raising()}, lambda: [_RaisingMapping()],
    lambda: np.int64(1), lambda: np.int8(-1), lambda: np.uint64(2**64 - 1), lambda: np.float64(1.5),
    lambda: np.float32("nan"), lambda: np.bool_(True), lambda: np.str_("k"),
    lambda: np.bytes_(b"k"),
    lambda: np.datetime64("2024-01-01"), lambda: np.datetime64("NaT"),
    lambda: np.timedelta64(1, "s"),
    lambda: np.array([]), lambda: np.array(["k"]), lambda: np.array([1, 2]), lambda: np.array(1),
    lambda: np.array([[1]]), lambda: np.array([object()]), lambda: np.ma.masked,
    lambda: pd.Series([1, 2], name="k"), lambda: pd.Series(["k"]), lambda: pd.Index(["k"]),
    lambda: pd.NaT, lambda: pd.NA, lambda: pd.Timestamp("2024-01-01"), lambda: pd.DataFrame(),
    lambda: pd.DataFrame([[1, 2]], columns=["k", "k"]), lambda: pd.DataFrame({1: [1]}),
    lambda: pd.DataFrame({"k": [1, "a"]}), lambda: pd.DataFrame({"k": [object()]}),
    lambda: pd.DataFrame({("a", "b"): [1]}), lambda: pd.DataFrame({"k": ["\ud800"]}),
    lambda: pd.DataFrame({"k": [1j]}), lambda: pd.DataFrame({"k": pd.Categorical(["a"])}),
    lambda: pl.Series("k", [1]), lambda: pl.DataFrame(), lambda: pl.DataFrame({"k": [1]}),
    lambda: pl.DataFrame({"k": [object()]}), lambda: pl.LazyFrame({"k": [1]}),
    lambda: pl.LazyFrame({"k": [1]}).select("missing"), lambda: pl.col("k"), lambda: pl.Int64,
    lambda: pl.DataFrame({"k": [[1]]}), lambda: pl.DataFrame({"k": [1], "v": [timedelta(1)]}),
    lambda: pl.LazyFrame({"k": [1]}).map_batches(lambda frame: 1 / 0),
    lambda: pa.table({}), lambda: pa.table({"k": pa.nulls(2)}), lambda: pa.scalar(1),
    lambda: pa.table([[1], [2]], names=["k", "k"]), lambda: pa.array([1]), lambda: pa.int64(),
    lambda: pa.table({"k": pa.array([[1]])}), lambda: pa.chunked_array([[1]]),
    lambda: pa.schema([]),
    lambda: pa.schema([("k", pa.int64())]), lambda: pa.schema([("k", pa.null())]),
    lambda: pa.schema([("k", pa.int64()), ("k", pa.int64())]), lambda: pa.schema([("", pa.int8())]),
    lambda: pa.schema([("k", pa.dictionary(pa.int8(), pa.string()))]),
    lambda: pa.field("k", "int8"),
    lambda: pa.schema([("k", pa.run_end_encoded(pa.int32(), pa.int64()))]),
    lambda: pa.schema([("k", pa.dense_union([pa.field("a", pa.int8())]))]),
    lambda: pa.table({"k": pa.array([1], pa.uint64()), "v": pa.array(["a"], pa.large_string())}),
    lambda: pa.table({"k": pa.array(["a"]).dictionary_encode()}), _closed_reader, _failing_reader,
    lambda: pa.record_batch({"k": pa.array([None], pa.int64())}), lambda: pa.bool_(),
    lambda: pa.Table.from_batches([], pa.schema([("k", pa.int64())])),
    lambda: date(1, 1, 1), lambda: date(9999, 12, 31), lambda: datetime(1, 1, 1),
    lambda: datetime(9999, 12, 31, tzinfo=timezone.utc), lambda: time(1), lambda: timedelta(1),
    lambda: datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), lambda: timezone.utc,
    lambda: Path("nowhere"), lambda: Path("a\0b"), lambda: Path(),
]  # fmt: skip


def odd(chance: random.Random) -> Any:
    """A value that few calls expect."""
    if chance.random() < 0.3:
        return odd_text(chance)
    value = chance.choice(_ODD)()
    if chance.random() < 0.15:
        other = odd_text(chance) if chance.random() < 0.5 else chance.choice(_ODD)()
        return chance.choice(
            [lambda: [value, other], lambda: {"k": other}, lambda: (value,), lambda: [{"k": other}]]
        )()
    return value


def odd_text(chance: random.Random) -> str:
    """A text that few calls expect."""
    return chance.choice(TEXTS)


def mutated(text: str, chance: random.Random) -> str:
    """A text with some characters dropped, doubled, swapped or replaced."""
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        if not text:
            return odd_text(chance)
        i = chance.randrange(len(text))
        j = min(len(text), i + chance.choice([1, 1, 2, 5]))
        middle = chance.choice(
            ["", text[i:j] * 2, odd_text(chance), chr(chance.randrange(1, 0x250)), text[i:j][::-1]]
        )
        text = text[:i] + middle + text[j:]
    return text
