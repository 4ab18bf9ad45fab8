"""A merge engine is one class and one line: the rest asks its members, and knows no names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.__main__ import document
from keytide.merge.engine import MergeEngine
from keytide.merge.engines import ENGINES
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import MergeOrder
from keytide.merge.refusal import Refusal, retracts_of
from keytide.merge.windows import KeySlices, merge_repeated
from keytide.options import TableOptions
from keytide.types import Field
from new_tables import empty_lake, empty_table
from table_rows import dicts

SOURCE = Path(__file__).parents[2] / "src/keytide"
NAME = "keep-smallest"


@dataclass(frozen=True)
class KeepSmallest(MergeEngine):
    """Keeps the version with the smallest value of the column `size`; ties go to the first."""

    meaning: ClassVar[str] = "The smallest version."
    picks_a_version: ClassVar[bool] = True
    follows_sequence: ClassVar[bool] = False
    compared: ClassVar[tuple[str, ...]] = ("size",)  # type: ignore[misc]  # the same in each table
    order: MergeOrder

    @classmethod
    def of(
        cls,
        order: MergeOrder,
        fields: tuple[Field, ...],
        options: TableOptions,
        functions: Mapping[str, MergeFunction],
    ) -> KeepSmallest:
        return cls(order)

    @classmethod
    def check(
        cls, columns: Mapping[str, Field], primary_keys: Sequence[str], options: TableOptions
    ) -> None:
        if "size" not in columns:
            raise kt.InvalidError(f"merge engine {NAME} needs a column 'size'")

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        return merge_repeated(versions, self.order.key, self._smallest, in_key_order=in_key_order)

    def _smallest(self, versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
        key = list(self.order.key)
        return versions.sort([*key, "size"], maintain_order=True).filter(
            pl.struct(key).is_first_distinct()
        )

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        yield Refusal(retracts_of(rows), "nothing is smaller than a row that is gone")

    @property
    def refuses_update(self) -> str | None:
        return "a greater value would lose; insert a smaller one"

    @property
    def refuses_delete(self) -> str | None:
        return "leave the row"

    def loses(self, winner: int, reason: str) -> str:
        return f"ignored: version {winner} is smaller"


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> kt.Lake:
    monkeypatch.setitem(ENGINES, NAME, KeepSmallest)  # the one line
    return empty_lake()


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    lake.sql(
        f"CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, size INT, v STRING) "
        f"WITH ('merge-engine' = '{NAME}')"
    )
    lake.sql("INSERT INTO t VALUES (1, 5, 'a'), (2, 1, 'x')")
    lake.sql("INSERT INTO t VALUES (1, 3, 'b'), (1, 4, 'c')")
    lake.sql("INSERT INTO t VALUES (1, 9, 'd'), (2, 2, 'y')")
    return lake.table("t")


def test_rows_of_another_engine_are_written_and_read(table: kt.Table, lake: kt.Lake) -> None:
    rows = [{"k": 1, "size": 3, "v": "b"}, {"k": 2, "size": 1, "v": "x"}]
    assert dicts(table) == rows
    assert table.scan(columns=["v"], where="k = 1").to_pylist() == [{"v": "b"}]
    assert table.scan(where="size > 3").to_pylist() == []
    assert table.get(2) == rows[1]
    assert lake.sql("SELECT sum(size) AS s FROM t").to_pylist() == [{"s": 4}]


def test_files_are_pruned_where_the_engine_picks_a_version(table: kt.Table) -> None:
    assert table.scan(where="size > 100").explain().files_merged == 0
    assert table.scan(where="size > 3").explain().files_merged > 0


@pytest.mark.one_in(14)
@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("engine", [*ENGINES, NAME])
def test_pruning_by_values_changes_no_answer(engine: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("size", pa.int64()), ("v", pa.int64())])
    summed = {"fields.default-aggregate-function": "sum"} if engine == "aggregation" else {}
    options = {"merge-engine": engine, **summed}
    table = empty_table(schema, key=["k"], options=options)
    for commit in (((1, 5, 1), (2, 1, 2)), ((1, 3, 4), (2, 6, None)), ((1, 4, 2), (2, 2, 2))):
        table.write([dict(zip(schema.names, row, strict=True)) for row in commit])
    rows = table.scan().to_pylist()
    assert len(rows) == 2
    for column in ("size", "v"):
        for value in range(15):
            found = table.scan(where=f"{column} = {value}").to_pylist()
            assert found == [row for row in rows if row[column] == value]


def test_why_speaks_in_the_words_of_another_engine(table: kt.Table) -> None:
    why = table.why(1)
    told = why.to_arrow().select(["size", "outcome"]).to_pylist()
    assert [tuple(row.values()) for row in told] == [
        (5, "ignored: version 2 is smaller"),
        (3, "is the row"),
        (9, "ignored: version 2 is smaller"),
    ]
    assert why.taken == {"size": (2,), "v": (2,)}
    assert why.row == {"k": 1, "size": 3, "v": "b"}


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("UPDATE t SET size = 1", "keep-smallest does not support UPDATE; a greater value would"),
        ("DELETE FROM t", "keep-smallest does not support DELETE of single rows; leave the row"),
    ],
)
def test_sql_asks_another_engine_what_it_can(
    lake: kt.Lake, table: kt.Table, statement: str, answer: str
) -> None:
    with pytest.raises(kt.UnsupportedError, match=answer):
        lake.sql(statement)


def test_rows_that_another_engine_refuses_are_not_written(table: kt.Table) -> None:
    with pytest.raises(kt.InvalidError, match="nothing is smaller"):
        table.write([{"k": 1, "size": 1, "v": "z", "_row_kind": "-D"}])
    with pytest.raises(kt.InvalidError, match="the rows lack the column 'v'"):
        table.write([{"k": 1, "size": 1}])  # only an engine that fills gaps takes that


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("v INT", "", "needs a column 'size'"),
        ("size INT", ", 'sequence.field' = 'size'", "keep-smallest does not use sequence fields"),
    ],
)
def test_another_engine_checks_its_tables(
    lake: kt.Lake, columns: str, options: str, message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        lake.sql(
            f"CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, {columns}) "
            f"WITH ('merge-engine' = '{NAME}'{options})"
        )


def test_option_that_does_not_act_on_another_engine_warns(lake: kt.Lake) -> None:
    with pytest.warns(kt.KeytideWarning, match="'fields.v.aggregate-function' has no effect"):
        lake.sql(
            f"CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, size INT, v INT) "
            f"WITH ('merge-engine' = '{NAME}', 'fields.v.aggregate-function' = 'sum')"
        )


@pytest.mark.usefixtures("lake")
def test_document_lists_another_engine() -> None:
    assert f"| `{NAME}` | The smallest version. |" in document()


def test_name_of_no_engine_is_refused_and_the_engines_named() -> None:
    lake = empty_lake()
    with pytest.raises(kt.InvalidError, match=f"expected one of {', '.join(ENGINES)}"):
        lake.sql(
            f"CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, size INT) "
            f"WITH ('merge-engine' = '{NAME}')"
        )


def test_table_of_an_engine_without_a_kernel_says_so(
    lake: kt.Lake, table: kt.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ENGINES, NAME)
    for act in (table.scan().to_pylist, lambda: table.write([{"k": 1, "size": 1, "v": "z"}])):
        with pytest.raises(
            kt.UnsupportedError, match=f"merge engine '{NAME}' is not supported by this release"
        ):
            act()


# -- nobody asks for a name or a class -------------------------------------------------------------

CLASSES = {engine.__name__ for engine in ENGINES.values()} | {"SequenceGroups"}
OWN = {"aggregation", "partial_update", "sequence_groups", "engines"}


def asks(path: Path) -> Iterator[str]:
    """Where a module has the name of an engine as a text, or the class of one."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        is_name = isinstance(node, ast.Constant) and node.value in ENGINES
        is_class = isinstance(node, ast.Name) and node.id in CLASSES
        if is_name or is_class:
            yield f"{path.relative_to(SOURCE)}, line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.takes_turns
def test_no_module_asks_which_engine_it_is() -> None:
    engines = {SOURCE / f"merge/{name}.py" for name in OWN}
    options = set((SOURCE / "options").iterdir())  # where an option has one for its default
    others = set(SOURCE.rglob("*.py")) - engines - options
    assert [found for path in sorted(others) for found in asks(path)] == []
