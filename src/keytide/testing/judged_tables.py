"""Small tables that a reader is judged by, and the rows that each of them must show.

The rows are written down here and in `judged_tables.json`, or follow from the values: no engine was
asked for them. A table's history is the same however it is cut into commits and compacted, and so
are its rows, because the order of compactions must not matter.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

import keytide as kt
from keytide.base.dataclass import dataclass, field
from keytide.definition.schema_evolution import (
    AddColumn,
    ChangeColumnType,
    DropColumn,
    First,
    MoveColumn,
    RenameColumn,
)
from keytide.options import keys
from keytide.testing.json_values import arrow_column

__all__ = ["Cell", "cells"]

Row: TypeAlias = tuple[Any, ...]
Version: TypeAlias = tuple[str, Row]
"""A row kind, and values of JSON."""
Step: TypeAlias = Callable[[kt.Table], object]


@dataclass(frozen=True)
class Cell:
    """A table: its definition, its life, what of it is read, and the rows that must be seen."""

    area: str
    name: str
    columns: Mapping[str, str]
    life: tuple[Step, ...]
    rows: tuple[Row, ...]
    key: tuple[str, ...] = ("k",)
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    form: str = "paimon"
    look: Mapping[str, Any] = field(default_factory=dict)
    """A snapshot, tag or branch in place of the latest snapshot."""
    shown: Mapping[str, str] | None = None
    """The columns that are seen, if they are others than at first."""
    bags: tuple[str, ...] = ()
    """Columns of lists whose elements have no order."""

    def make(self, lake: kt.Lake, name: str) -> kt.Table:
        """Create the table and lead its life.

        Raises `UnsupportedError` if a form cannot have such columns.
        """
        types = {column: kt.parse_sql_type(text) for column, text in self.columns.items()}
        schema = [kt.Field(-1, column, kind) for column, kind in types.items()]
        options = {keys.BUCKET: "1", keys.WRITE_ONLY: "true", **self.options}
        table = lake.create_table(
            name, schema, self.key, partition_by=self.partition_by, options=options
        )
        for step in self.life:
            step(table)
        return table


# -- steps of a life -------------------------------------------------------------------------------


def _write(versions: Sequence[Version], table: kt.Table) -> object:
    """Write versions in one commit."""
    fields = table.table_schema.fields
    arrays = [
        arrow_column([row[place] for _, row in versions], each.type)
        for place, each in enumerate(fields)
    ]
    kinds = pa.array([kind for kind, _ in versions])
    names = [*(each.name for each in fields), "_row_kind"]
    return table.write(pa.Table.from_arrays([*arrays, kinds], names=names))


def _writes(versions: Sequence[Version], commits: int) -> list[Step]:
    """Steps that write versions, in so many commits of about the same size."""
    ends = [len(versions) * number // commits for number in range(commits + 1)]
    parts = (versions[start:end] for start, end in itertools.pairwise(ends))
    return [partial(_write, part) for part in parts if part]


def _each_then(writes: Sequence[Step], other: Step, but: int) -> list[Step]:
    """Another step after each write but the last ones."""
    return [*(step for each in writes[:-but] for step in (each, other)), *writes[-but:]]


def _compact(table: kt.Table) -> object:
    return table.compact(full=True)


def _expire(table: kt.Table) -> object:
    return table.expire_snapshots(retain_max=1, retain_min=1)


def _publish(table: kt.Table) -> object:
    (made,) = table.publish()
    assert made.version is not None, made.reason
    return made


LIVES: dict[str, Callable[[Sequence[Version]], list[Step]]] = {
    "one commit": lambda vs: _writes(vs, 1),
    "a commit a row": lambda vs: _writes(vs, len(vs)),
    "three commits": lambda vs: _writes(vs, 3),
    "compacted": lambda vs: [*_writes(vs, 3), _compact],
    "compacted between": lambda vs: _each_then(_writes(vs, 3), _compact, 1),
    "compacted in part": lambda vs: _each_then(_writes(vs, len(vs)), lambda t: t.compact(), 3),
    "rolled back": lambda vs: [
        *_writes(vs, 3), *_writes(vs[:2], 1), lambda t: t.rollback_to(3),
    ],
    "expired": lambda vs: [*_writes(vs, 3), _compact, _expire],
}  # fmt: skip
"""How a history is cut and compacted."""
FORMATS = ("parquet", "orc", "avro")


def _lived(
    area: str, name: str, history: Sequence[Version], lives: Sequence[str],
    formats: Sequence[str] = FORMATS, **more: Any,
) -> Iterator[Cell]:  # fmt: skip
    """A cell for each life in each format of data files."""
    options = more.pop("options", {})
    for life, file_format in itertools.product(lives, formats):
        yield Cell(
            area,
            f"{name}, {life}, {file_format}",
            life=tuple(LIVES[life](history)),
            options={keys.FILE_FORMAT: file_format, **options},
            **more,
        )


# -- merge engines ---------------------------------------------------------------------------------

_DECLARED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
_COLUMNS: dict[str, str] = _DECLARED["columns"]


def _rows(lines: Sequence[str]) -> tuple[Row, ...]:
    """Rows of lines such as `1 3 11 - d`, in which `-` is NULL."""
    return tuple(
        tuple(
            None if word == "-" else word if name == "t" else int(word)
            for name, word in zip(_COLUMNS, line.split(), strict=True)
        )
        for line in lines
    )


_CHANGES: list[Version] = [(line[:2], *_rows([line[3:]])) for line in _DECLARED["changes"]]
_ENGINES: dict[str, tuple[dict[str, str], tuple[Row, ...]]] = {
    name: (engine["options"], _rows(engine["rows"]))
    for name, engine in _DECLARED["engines"].items()
}
"""The options of a table with an engine, and the rows that the changes become."""
_BY_SEQUENCE = "deduplicate by sequence"


def _engines_with(feature: str) -> list[str]:
    return [name for name, engine in _DECLARED["engines"].items() if feature in engine["also"]]


def _of_engines() -> Iterator[Cell]:
    for name, (options, rows) in _ENGINES.items():
        yield from _lived(
            "merge engines", name, _CHANGES, [*LIVES], columns=_COLUMNS, rows=rows, options=options
        )


def _of_functions() -> Iterator[Cell]:
    """A function, the type of its column, the values of one key in order, and what they become."""
    for function, kind, values, result in _DECLARED["functions"]:
        versions: list[Version] = [("+I", (1, value)) for value in values]
        yield from _lived(
            "aggregate functions",
            f"{function} of {kind}",
            [*versions, ("+I", (2, values[0]))],
            [life for life in LIVES if life != "one commit"],
            columns={"k": "INT NOT NULL", "x": kind},
            rows=((1, result), (2, values[0])),
            options={
                **_DECLARED["aggregating"],
                keys.key_of(keys.AGGREGATE_FUNCTION, "x"): function,
            },
            bags=("x",) if kind.startswith("ARRAY") else (),
        )


# -- types -----------------------------------------------------------------------------------------

_SECONDS = ["0001-01-01T00:00:00", "1969-12-31T23:59:59", "1970-01-01T00:00:00",
            "2023-11-14T22:13:20", "9999-12-31T23:59:59"]  # fmt: skip
_TEXTS = ["", "a", "é", "日本語", "\U0001f600", "ab"]
_MICROS = ["1969-12-31T23:59:59.999999", "1970-01-01T00:00:00.000001", "2023-11-14T22:13:20.123456"]
_NANOS = ["1969-12-31T23:59:59.999999999", "1970-01-01T00:00:00.000000999",
          "2023-11-14T22:13:20.123456789"]  # fmt: skip
_ZONE = "WITH LOCAL TIME ZONE"
_KEY_VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [False, True],
    "TINYINT": [-128, -1, 0, 127],
    "SMALLINT": [-32_768, -1, 0, 32_767],
    "INT": [-(2**31), -1, 0, 2**31 - 1],
    "BIGINT": [-(2**63), -1, 0, 2**63 - 1],
    "FLOAT": ["-Infinity", -1.5, 0.0, "Infinity"],
    "DOUBLE": ["-Infinity", -1.5, 0.0, 5e-324, "Infinity"],
    "DECIMAL(5, 2)": ["-999.99", "0.00", "999.99"],
    "DECIMAL(18, 4)": ["-99999999999999.9999", "0.0001"],
    "DECIMAL(19, 0)": [f"-{10**19 - 1}", "-1", "0", f"{10**19 - 1}"],
    "DECIMAL(38, 10)": [f"-{'9' * 28}.{'9' * 10}", "0.0000000000", "0.5000000000"],
    "CHAR(3)": ["abc", "日本語"],
    "VARCHAR(7)": _TEXTS,
    "STRING": [*_TEXTS, "x" * 300, "\t \n\"'\\/%=:"],
    "VARBINARY(9)": ["", "AA==", "////////////"],
    "BYTES": ["", "AA==", "wyg=", "////" * 100],
    "DATE": ["0001-01-01", "1969-12-31", "1970-01-01", "9999-12-31"],
    "TIME(3)": ["00:00:00", "00:00:00.001", "23:59:59.999"],
    "TIMESTAMP(0)": _SECONDS,
    "TIMESTAMP(3)": [*_SECONDS, "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.001"],
    "TIMESTAMP(6)": [*_SECONDS, *_MICROS],
    "TIMESTAMP(9)": _NANOS,
    f"TIMESTAMP(3) {_ZONE}": ["1969-12-31T23:59:59.999", "2023-11-14T22:13:20.123"],
    f"TIMESTAMP(6) {_ZONE}": _MICROS,
    f"TIMESTAMP(9) {_ZONE}": _NANOS,
}
_VALUES: dict[str, list[Any]] = {
    **{kind: [*values, None] for kind, values in _KEY_VALUES.items()},
    "FLOAT": [*_KEY_VALUES["FLOAT"], -0.0, "NaN", 1.401298464324817e-45, None],
    "DOUBLE": [*_KEY_VALUES["DOUBLE"], -0.0, "NaN", None],
    "BINARY(2)": ["AAA=", "/38=", None],
    "ARRAY<INT>": [[], [1, None, -1], None],
    "ARRAY<DECIMAL(38, 2)>": [["-0.01", None], None],
    "ARRAY<TIMESTAMP(3)>": [["2023-11-14T22:13:20.123", None], None],
    "ARRAY<ARRAY<STRING>>": [[[], ["a", None], None], [], None],
    "MAP<STRING, INT>": [[], [["a", 1], ["", None]], None],
    "MAP<DATE, DECIMAL(9, 2)>": [[["1970-01-01", "-1.00"], ["2024-01-01", None]], None],
    "MAP<INT, ARRAY<STRING>>": [[[1, ["a", None]], [2, []], [3, None]], None],
    "MULTISET<STRING>": [[], [["a", 2], ["", 1]], None],
    "ROW<a INT, b STRING>": [{"a": 1, "b": None}, {"a": None, "b": ""}, None],
    "ROW<a INT, b ROW<c DECIMAL(20, 3), d ARRAY<BIGINT>>>": [
        {"a": 1, "b": {"c": "-1.125", "d": [1, None]}}, {"a": 2, "b": None}, None,
    ],
    "ARRAY<ROW<x INT, y MAP<STRING, DOUBLE>>>": [
        [{"x": 1, "y": [["a", 0.5], ["b", None]]}, None], [], None,
    ],
}  # fmt: skip
_SOME_LIVES = ("three commits", "compacted", "compacted between")


def _storable(kind: str, values: list[Any], file_format: str) -> list[Any]:
    """Those values that files of a format can have.

    Avro has no nanoseconds, and ORC has no other times that all readers take alike.
    """
    if file_format == "parquet" or not kind.startswith("TIMESTAMP"):
        return values
    if file_format == "avro":
        return [] if kind.startswith("TIMESTAMP(9)") else values
    return [value for value in values if value is None or "1970" <= value < "2262"]


def _of_values() -> Iterator[Cell]:
    """Each key has one value, and then another one."""
    for (kind, given), file_format in itertools.product(_VALUES.items(), FORMATS):
        values = _storable(kind, given, file_format)
        if not values:
            continue
        turned = [*values[1:], values[0]]
        history = [("+I", pair) for each in (values, turned) for pair in enumerate(each)]
        yield from _lived(
            "types of values", kind, history, ("a commit a row", *_SOME_LIVES), [file_format],
            columns={"k": "INT NOT NULL", "x": kind}, rows=tuple(enumerate(turned)),
        )  # fmt: skip


def _of_keys() -> Iterator[Cell]:
    """All keys are written, all but the first again, and the last one is deleted."""
    for (kind, given), file_format in itertools.product(_KEY_VALUES.items(), FORMATS):
        values = _storable(kind, given, file_format)
        if not values:
            continue
        history = [
            *(("+I", (value, 1)) for value in values),
            *(("+U", (value, 2)) for value in values[1:]),
            ("-D", (values[-1], 2)),
        ]
        rows = ((values[0], 1), *((value, 2) for value in values[1:-1]))
        yield from _lived(
            "types of keys", kind, history, _SOME_LIVES, [file_format],
            columns={"k": f"{kind} NOT NULL", "v": "INT"},
            rows=rows if len(values) > 1 else (),
        )  # fmt: skip
    for kind, given in _KEY_VALUES.items():
        if "TIME" in kind or kind in ("FLOAT", "DOUBLE", "BYTES", "VARBINARY(9)"):
            continue
        values = [value for value in given if value != "" and len(str(value)) < 100]
        added: list[Version] = [("+I", (value, n, n)) for n in (1, 2) for value in values]
        yield from _lived(
            "types of partitions", kind, [*added, ("-D", (values[0], 1, 1))],
            ("three commits", "compacted"),
            columns={"p": f"{kind} NOT NULL", "k": "INT NOT NULL", "v": "INT"},
            key=("p", "k"), partition_by=("p",),
            rows=tuple(row for _, row in added if row != (values[0], 1, 1)),
        )  # fmt: skip


# -- features of a table ---------------------------------------------------------------------------


def _of_features() -> Iterator[Cell]:
    options, rows = _ENGINES[_BY_SEQUENCE]
    for name, more in _DECLARED["features"].items():
        yield from _lived(
            "features", name, _CHANGES,
            ("a commit a row", "compacted", "compacted between", "rolled back", "expired"),
            [each for each in FORMATS if (name, each) != ("lz4", "avro")],
            columns=_COLUMNS, rows=rows, options={**options, **more},
        )  # fmt: skip
    for feature, lives in (
        ("deletion vectors", ("a commit a row", "three commits", "compacted")),
        ("changelog by lookups", ("a commit a row", "three commits")),
    ):
        for engine in _engines_with(feature):
            options, rows = _ENGINES[engine]
            yield from _lived(
                "features", f"{feature}, {engine}", _CHANGES, lives,
                columns=_COLUMNS, rows=rows, options={**options, **_DECLARED[feature]},
            )  # fmt: skip


def _of_append_tables() -> Iterator[Cell]:
    """Rows without a key are all seen."""
    versions: list[Version] = [("+I", row) for _, row in _CHANGES]
    for name, options in _DECLARED["append tables"].items():
        yield from _lived(
            "append tables", name, versions, ("one commit", "a commit a row", "compacted"),
            columns=_COLUMNS, rows=tuple(row for _, row in versions), key=(), options=options,
        )  # fmt: skip


# -- time travel -----------------------------------------------------------------------------------


def _of_times() -> Iterator[Cell]:
    """Three commits of one row each, an update among them, and a compaction."""
    history: list[Version] = [("+I", (1, 1)), ("+U", (1, 2)), ("+I", (2, 3))]
    states = {1: ((1, 1),), 2: ((1, 2),), 3: ((1, 2), (2, 3))}
    writes = _writes(history, 3)

    def branched(table: kt.Table) -> object:
        table.create_branch("b", tag="second")
        branch = table.branch("b")
        return _write([("+I", (7, 7))], branch)

    def tagged(table: kt.Table) -> object:
        return table.create_tag("second", 2)

    looks: list[tuple[str, dict[str, Any], tuple[Row, ...], tuple[Step, ...]]] = [
        *((f"snapshot {n}", {"snapshot": n}, states[n], ()) for n in states),
        ("snapshot of a compaction", {"snapshot": 4}, states[3], ()),
        ("tag", {"tag": "second"}, states[2], ()),
        ("tag of an expired snapshot", {"tag": "second"}, states[2], (_expire,)),
        ("branch", {"branch": "b"}, ((1, 2), (7, 7)), (branched,)),
    ]
    for (name, look, rows, more), file_format, bucket in itertools.product(
        looks, FORMATS, ("1", "3")
    ):
        yield Cell(
            "time travel",
            f"{name}, {bucket} bucket{'s' * (bucket != '1')}, {file_format}",
            {"k": "INT NOT NULL", "v": "INT"},
            (*writes, tagged, _compact, *more),
            rows,
            options={keys.FILE_FORMAT: file_format, keys.BUCKET: bucket},
            look=look,
        )


# -- changes of the schema -------------------------------------------------------------------------


_TYPES_BEFORE_AND_AFTER = [
    ("TINYINT", "INT", 5, 5),
    ("INT", "BIGINT", -7, -7),
    ("INT", "DOUBLE", 7, 7.0),
    ("INT", "DECIMAL(12, 2)", 7, "7.00"),
    ("FLOAT", "DOUBLE", 0.5, 0.5),
    ("DECIMAL(9, 2)", "DECIMAL(20, 2)", "1.25", "1.25"),
    ("VARCHAR(3)", "STRING", "abc", "abc"),
    ("BINARY(2)", "BYTES", "AP8=", "AP8="),
]


def _of_schemas() -> Iterator[Cell]:
    """Two rows, a change of the schema, and a third row and an update in the new schema."""
    two: list[Version] = [("+I", (1, 10, "a")), ("+I", (2, 20, "b"))]
    plain = {"k": "INT NOT NULL", "v": "INT", "t": "STRING"}
    added = {**plain, "n": "INT"}
    changes: list[tuple[str, Any, dict[str, str], list[Version], tuple[Row, ...]]] = [
        ("a new column", AddColumn(("n",), kt.parse_sql_type("INT")), added,
         [("+U", (2, 21, "c", 5))], ((1, 10, "a", None), (2, 21, "c", 5))),
        ("a new column in front",
         AddColumn(("n",), kt.parse_sql_type("INT"), position=First()),
         {"n": "INT", **plain},
         [("+U", (5, 2, 21, "c"))], ((None, 1, 10, "a"), (5, 2, 21, "c"))),
        ("a dropped column", DropColumn(("v",)), {"k": "INT NOT NULL", "t": "STRING"},
         [("+U", (2, "c"))], ((1, "a"), (2, "c"))),
        ("a renamed column", RenameColumn(("v",), "x"),
         {"k": "INT NOT NULL", "x": "INT", "t": "STRING"},
         [("+U", (2, 21, "c"))], ((1, 10, "a"), (2, 21, "c"))),
        ("a renamed key", RenameColumn(("k",), "x"),
         {"x": "INT NOT NULL", "v": "INT", "t": "STRING"},
         [("+U", (2, 21, "c"))], ((1, 10, "a"), (2, 21, "c"))),
        ("a moved column", MoveColumn(("t",), First()),
         {"t": "STRING", "k": "INT NOT NULL", "v": "INT"},
         [("+U", ("c", 2, 21))], (("a", 1, 10), ("c", 2, 21))),
    ]  # fmt: skip
    for name, change, shown, later, rows in changes:
        yield from _evolved(name, plain, two, change, shown, later, rows)
    for before, after, value, widened in _TYPES_BEFORE_AND_AFTER:
        yield from _evolved(
            f"{before} becomes {after}",
            {"k": "INT NOT NULL", "x": before},
            [("+I", (1, value)), ("+I", (2, value))],
            ChangeColumnType(("x",), kt.parse_sql_type(after)),
            {"k": "INT NOT NULL", "x": after},
            [("+U", (2, None)), ("+I", (3, widened))],
            ((1, widened), (2, None), (3, widened)),
        )


def _evolved(
    name: str, before: dict[str, str], history: list[Version], change: Any,
    after: dict[str, str], later: list[Version], rows: tuple[Row, ...],
) -> Iterator[Cell]:  # fmt: skip
    def alter(table: kt.Table) -> object:
        return table.alter(change)

    lives: dict[str, list[Step]] = {
        "not compacted": [*_writes(history, 1), alter, *_writes(later, 1)],
        "compacted before": [*_writes(history, 1), _compact, alter, *_writes(later, 1)],
        "compacted after": [*_writes(history, 1), alter, *_writes(later, 1), _compact],
    }
    for (life, steps), file_format in itertools.product(lives.items(), FORMATS):
        yield Cell(
            "changes of the schema", f"{name}, {life}, {file_format}", before, tuple(steps), rows,
            options={keys.FILE_FORMAT: file_format}, shown=after,
        )  # fmt: skip


# -- published forms -------------------------------------------------------------------------------


def _of_forms() -> Iterator[Cell]:
    """Engines whose compacted files keep deletes are missing: no form can have those."""
    for form, publishing in _DECLARED["forms"].items():
        for engine in _engines_with("published"):
            options, rows = _ENGINES[engine]
            yield Cell(
                "published merge engines", f"{form}, {engine}, compacted", _COLUMNS,
                (*LIVES["compacted"](_CHANGES), _publish), rows,
                options={**options, **publishing}, form=form.split()[0],
            )  # fmt: skip
        for engine in _engines_with("deletion vectors"):
            for life in ("a commit a row", "three commits"):
                options, rows = _ENGINES[engine]
                yield Cell(
                    "published merge engines", f"{form}, {engine}, deletion vectors, {life}",
                    _COLUMNS, (*LIVES[life](_CHANGES), _publish), rows,
                    options={**options, **publishing, **_DECLARED["deletion vectors"]},
                    form=form.split()[0],
                )  # fmt: skip
        for kind, values in _VALUES.items():
            if kind == "TIME(3)" or kind.startswith("TIMESTAMP(9)"):
                continue  # the forms have no such type
            versions: list[Version] = [("+I", pair) for pair in enumerate(values)]
            yield Cell(
                "published types", f"{form}, {kind}", {"k": "INT NOT NULL", "x": kind},
                (*_writes(versions, 1), _compact, _publish), tuple(enumerate(values)),
                options=publishing, form=form.split()[0],
            )  # fmt: skip


def cells() -> list[Cell]:
    """All cells, always in the same order. No two have the same area and name."""
    return [
        *_of_engines(),
        *_of_functions(),
        *_of_values(),
        *_of_keys(),
        *_of_features(),
        *_of_append_tables(),
        *_of_times(),
        *_of_schemas(),
        *_of_forms(),
    ]
