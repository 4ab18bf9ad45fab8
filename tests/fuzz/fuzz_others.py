"""Tables that others keep: whatever their own libraries and SQL did, readers see one row per key.

What lies there is read by the format's own library after every step. The oracle merges that, by
docs/semantics.md; what a statement changes is said by the rows that were shown before it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pyarrow as pa
from fuzz_case import Case, Refused, brief
from fuzz_columns import array, kind_of, plain, rank, value
from fuzz_keepers import KEEPERS, Keeper, UnableError
from fuzz_tables import _SURVIVE as AS_PYTHON
from fuzz_where import Test, condition

import keytide as kt
from keytide.sources.federated import UpsertKeys
from keytide.types import DataType, quoted

__all__ = ["run"]

Row = dict[str, Any]
Columns = dict[str, DataType]


def run(case: Case) -> None:
    """One table of somebody else, and what becomes of it."""
    life = _begun(case)
    if life is None:
        return
    for _ in range(case.chance.choice([3, 6, 10])):
        life.step()
        if case.findings:
            return  # what follows would only repeat it


# -- definitions -----------------------------------------------------------------------------------

_FORMATS = ["delta"] * 4 + ["iceberg"] * 3 + ["sqlite"] * 3 + ["parquet"] * 2 + ["csv", "json"]
_NAMES = [
    "", "", "", "", "Größe", "a b", "it's", 'q"q', "per%cent", "-", "back`tick", "\\", "😀", "{x}",
    "a.b", ";--", "=", "n" * 90, "\ttab", "select", "$1", "?", ":x", "#", "/",
]  # fmt: skip
_TEXTS = [
    "'", '"', "`", "%s", "\\", "a\nb", "NULL", "x" * 3_000, "\u202e", ",", ";", "\r", "\t", "_",
    "'; --", "é" * 40, "+I", "{}", "\ufeff", "null", "NaN", "true", "1", "\x01",
]  # fmt: skip
_EXTREME = {"TIMESTAMP(6)": [-62_135_596_800_000_000, 253_402_300_799_999_999, 1, 999_999]}
_WATERMARKS = [
    "BIGINT", "BIGINT", "INT", "TIMESTAMP(6)", "STRING", "DATE", "DOUBLE", "DECIMAL(10, 2)",
    "BOOLEAN",
]  # fmt: skip
_TOMBSTONES = ["BOOLEAN", "BOOLEAN", "STRING", "TIMESTAMP(6)", "BIGINT", "DATE"]


@dataclass(frozen=True)
class Keys:
    """By what versions are merged."""

    primary: list[str]
    watermark: list[str]
    tombstone: str | None
    marker: str | None
    dml: str

    def of(self, row: Mapping[str, Any]) -> str:
        """What tells the rows of two keys apart; NULL is equal to NULL."""
        return repr(tuple(row[name] for name in self.primary))

    def is_dead(self, row: Mapping[str, Any]) -> bool:
        """Whether a version deletes (R6 to R8)."""
        v = None if self.tombstone is None else row[self.tombstone]
        if self.marker is not None:
            return bool(v == self.marker)
        return v is not None and v is not False


def _begun(case: Case) -> Life | None:
    chance = case.chance
    kind = KEEPERS[chance.choice(_FORMATS)]
    keeper, keys = _drawn(case, kind)
    columns = {n: k.sql() for n, k in keeper.columns.items()}
    told = f"{kind.format} {columns} by {keeper.partition}, {keys}"
    try:
        keeper.create()
    except UnableError:
        case.count("unable")
        return None
    lake = case.lake()
    life = Life(case, lake, keeper, keys, told)
    if kind.is_federated:
        life.attach()
    if not life.views or case.often(0.6):
        life.define()
    return life if life.views and not case.findings else None


def _drawn(case: Case, kind: type[Keeper]) -> tuple[Keeper, Keys]:
    chance = case.chance
    names = [n for n in _NAMES if not {*n} & {*kind.awkward}]

    def some(letter: str, texts: Sequence[str], count: int) -> Columns:
        texts = [t for t in texts if t in kind.types]
        return {
            f"{letter}{i}{chance.choice(names)}": kind_of(chance.choice(texts))
            for i in range(count)
        }

    flat = [t for t in kind.types if "<" not in t]
    is_ordered = kind.format in ("delta", "iceberg")
    watermarks = chance.choice([0, 1, 1, 2] if is_ordered else [1, 1, 2])
    dml = chance.choice(["copy", "copy", "explicit", "statement-time"]) if watermarks else "copy"
    if not is_ordered and dml == "copy":
        dml = chance.choice(["explicit", "statement-time", "copy"])
    orders = some("s", _WATERMARKS, watermarks)
    if dml == "statement-time":
        orders = some("s", ["TIMESTAMP(6)"], 1)
        if not orders:
            dml, orders = "explicit", some("s", _WATERMARKS, 1)
    key = some("k", flat, chance.choice([1, 1, 2, 3]))
    mark = some("d", _TOMBSTONES, 1) if watermarks and chance.random() < 0.75 else {}
    tombstone = next(iter(mark), None)
    is_text = tombstone is not None and mark[tombstone].sql() == "STRING"
    columns = {**key, **orders, **mark, **some("v", kind.types, chance.choice([0, 1, 3]))}
    shuffled = list(columns)
    chance.shuffle(shuffled)
    columns = {n: columns[n] for n in shuffled}
    marker = chance.choice(["gone", "it's", ""]) if is_text and chance.random() < 0.7 else None
    keys = Keys([*key], [*orders], tombstone, marker, dml)
    keeper = kind(case.folder / "theirs", columns, chance)
    cut = [n for n, k in columns.items() if n[0] in "kv" and k.sql() in _PARTS]
    can_cut = kind.format in ("delta", "parquet", "csv", "json") and len(columns) > 1
    if can_cut and cut and chance.random() < 0.3:
        keeper.partition = chance.choice(cut)
    return keeper, keys


_PARTS = ("INT", "BIGINT", "STRING", "DATE")


# -- a life ----------------------------------------------------------------------------------------


@dataclass
class View:
    """One of the ways to read the table, and what it has to show at older versions."""

    name: str
    columns: Columns
    policy: str | None = None
    on_read: bool = True
    past: dict[str, tuple[Columns, list[Row]]] = field(default_factory=dict)
    stale: set[str | None] = field(default_factory=set)
    """Versions that have other columns when they are named than when they were the newest."""

    @property
    def spelled(self) -> str:
        """As SQL names it."""
        return self.name


@dataclass
class Version:
    """A version of a key that lies there."""

    row: Row
    commit: int
    place: int


@dataclass
class Life:
    """A table, how it is read, and what lies there."""

    case: Case
    lake: kt.Lake
    keeper: Keeper
    keys: Keys
    definition: str
    views: list[View] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    commits: int = 0
    steps: list[str] = field(default_factory=list)
    sources: int = 0
    added: int = 0

    @property
    def told(self) -> str:
        """What was done."""
        return f"{self.definition}: {'; '.join(self.steps)}"

    @property
    def chance(self) -> random.Random:
        return self.case.chance

    @property
    def columns(self) -> Columns:
        return self.keeper.columns

    @property
    def is_federated(self) -> bool:
        return any(view.name == "far.t" for view in self.views)

    @property
    def far(self) -> Any:
        return self.lake.table("far.t")

    # -- how it is read ------------------------------------------------------------------------

    def attach(self) -> None:
        """Let SQL append to it."""
        keys, keeper = self.keys, self.keeper
        given = UpsertKeys(
            keys.primary, keys.watermark, keys.tombstone, keys.marker,
            keys.dml if keys.watermark else None,
        )  # fmt: skip
        if keeper.format == "iceberg":
            source, options = "n", keeper.options
        else:
            source = keeper.location if keeper.format == "sqlite" else str(keeper.folder)
            options = {}
        made = self.case.attempt(
            f"attach {self.definition}",
            lambda: self.lake.attach(
                "far", source, format=keeper.format, options=options, tables={"t": given}
            ),
        )
        if isinstance(made, Refused):
            self.case.note("rows", "attach is refused", f"{self.definition}: {made.error}")
            return
        self.views.append(View("far.t", self.columns))

    def define(self) -> None:
        """Define an external table."""
        keys, keeper, chance = self.keys, self.keeper, self.chance
        policies = ["tombstone-wins", "error"]
        ordered = keeper.format in ("delta", "iceberg")
        policies += [None, "last-write"] if ordered else [None] * 3 if keys.watermark else []
        policy = chance.choice(policies)
        options = {f"external.option.{n}": v for n, v in keeper.options.items()}
        options |= chance.choice([{}, {"read.memory": "1 kb"}, {"read.memory": "64 kb"}])
        if policy is not None:
            options["upsert.on-tie"] = policy
        columns, schema = dict(self.columns), None
        if keeper.declares or keeper.partition is not None or chance.random() < 0.3:
            needed = {*keys.primary, *keys.watermark, keys.tombstone}
            columns = {n: k for n, k in columns.items() if n in needed or chance.random() < 0.8}
            columns = {n: self._declared(n, k) for n, k in columns.items()}
            schema = [kt.Field(-1, n, k) for n, k in columns.items()]
        told = f"external {options} {schema and [f.sql() for f in schema]} of {self.definition}"
        made = self.case.attempt(
            told,
            lambda: self.lake.create_external_table(
                "e", format=keeper.format, location=keeper.location, primary_key=keys.primary,
                watermark_key=keys.watermark, tombstone_key=keys.tombstone,
                tombstone_string_key_value=keys.marker, schema=schema, options=options,
            ),
        )  # fmt: skip
        if isinstance(made, Refused):
            self.case.note("rows", "external table is refused", f"{told}: {made.error}")
            return
        self.definition = f"{self.definition}, {told[:400]}"
        self.views.append(View("e", columns, policy, schema is None))

    def _declared(self, name: str, kind: DataType) -> DataType:
        wider = {"INT": "BIGINT", "SMALLINT": "INT", "TINYINT": "BIGINT", "FLOAT": "DOUBLE"}
        if kind.sql() in wider and self.chance.random() < 0.3:
            return kind_of(wider[kind.sql()])
        return kind

    # -- what lies there -----------------------------------------------------------------------

    def learn(self, given: Sequence[Row] = ()) -> None:
        """Compare what lies there with what did: what is more came in this step."""
        now = Counter(map(repr, found := self.keeper.stored()))
        by_text = {repr(row): row for row in found}
        self.commits += 1
        left: list[Version] = []
        for version in self.versions:
            text = repr(version.row)
            if now[text] > 0:
                now[text] -= 1
                left.append(version)
        order = [repr(row) for row in given]
        for text, count in now.items():
            for _ in range(count):
                place = order.index(text) if text in order else -1
                if place >= 0:
                    order[place] = ""
                left.append(Version(by_text[text], self.commits, place))
        self.versions = left

    def rows_of(self, view: View) -> dict[str, list[Row | None]] | None:
        """By key, the rows that may be shown, None for none; None where a read is refused."""
        by_key: dict[str, list[Version]] = {}
        for version in self.versions:
            row = {n: version.row[n] for n in view.columns}
            for n in self.keys.primary:
                row[n] = row[n] + 0.0 if isinstance(row[n], float) else row[n]
            by_key.setdefault(self.keys.of(row), []).append(
                Version(row, version.commit, version.place)
            )
        found = {key: self._outcome(some, view) for key, some in by_key.items()}
        if any(each is None for each in found.values()):
            return None
        return {key: each for key, each in found.items() if each is not None}

    def _outcome(self, some: list[Version], view: View) -> list[Row | None] | None:
        keys = self.keys

        def fresh(version: Version) -> tuple[Any, ...]:
            return tuple(rank(version.row[n], view.columns[n]) for n in keys.watermark)

        best = max(map(fresh, some))
        tied = [version for version in some if fresh(version) == best]
        if view.policy == "error" and len({_alike(v.row) for v in tied}) > 1:
            return None
        dead = [version for version in tied if keys.is_dead(version.row)]
        alive = [version.row for version in tied if not keys.is_dead(version.row)]
        if view.policy == "tombstone-wins" and dead:
            return [None]
        if not self.keeper.is_ordered:
            return [None] if dead else self._largest(alive, view)
        if self.keeper.has_rewritten:
            return [*alive, *([None] if dead else [])]
        last = max(version.commit for version in tied)
        of_last = [version for version in tied if version.commit == last]
        if any(version.place < 0 for version in of_last):
            return [None if keys.is_dead(v.row) else v.row for v in of_last]
        row = max(of_last, key=lambda version: version.place).row
        found = [None if keys.is_dead(row) else row]
        if self.keeper.partition not in (None, *keys.primary):
            # Its rows may lie in several files, of which nobody knows the later one.
            found += [None] if dead else self._largest([v.row for v in of_last], view)
        return found

    def _largest(self, rows: list[Row], view: View) -> list[Row | None]:
        for name, kind in view.columns.items():
            if "<" in kind.sql():
                break
            best = max(rank(row[name], kind) for row in rows)
            rows = [row for row in rows if rank(row[name], kind) == best]
        return list(rows)

    # -- what is done --------------------------------------------------------------------------

    def step(self) -> None:
        """Do something, and look."""
        acts: list[Callable[[], Any]] = [*[self.append] * 5, *[self.maintain] * 2, self.evolve]
        if self.is_federated:
            acts += [*[self.write] * 2, *[self.insert] * 2, *[self.update] * 3, *[self.delete] * 2,
                     *[self.merge] * 2, self.move, self.at_once]  # fmt: skip
        self.chance.choice(acts)()
        for view in self.views:
            if not self.case.findings:
                self.check(view)

    def row(self) -> Row:
        """A row as somebody writes it."""
        return {n: self._value(n, k) for n, k in self.columns.items()}

    def _value(self, name: str, kind: DataType) -> Any:
        chance, keys = self.chance, self.keys
        while True:
            nulls = 0.03 if name in keys.primary else 0.7 if name == keys.tombstone else 0.2
            if name == keys.tombstone and keys.marker is not None and chance.random() < 0.3:
                return keys.marker
            if name in keys.watermark and kind.sql() == "BIGINT":
                v = chance.choice([0, 1, 2, 3, None])
            else:
                few = name in keys.primary or name in keys.watermark
                v = value(kind, chance, nulls, few)
                if v is not None and chance.random() < 0.15:
                    v = chance.choice(_EXTREME.get(kind.sql(), [v]))
                    v = chance.choice(_TEXTS) if kind.sql() == "STRING" else v
            if name == self.keeper.partition and v == "" and self.keeper.format == "delta":
                continue  # which is NULL there
            if name == self.keeper.partition and isinstance(v, str) and len(v.encode()) > 60:
                continue  # no folder has such a name
            if v is None or self.keeper.keeps(v, kind):
                return v

    def some_rows(self, *, distinct: bool = False) -> list[Row]:
        """Rows that are written at once."""
        size = self.chance.choice([1, 2, 4, 9, 9, 60 if self.chance.random() < 0.3 else 3])
        rows = [self.row() for _ in range(size)]
        if distinct:
            rows = [row for row in rows if not self._has_null(row)]
            rows = list({self.keys.of(_with_zeros(row)): row for row in rows}.values())
        return rows

    def _has_null(self, row: Row) -> bool:
        return any(row[n] is None for n in self.keys.primary)

    def append(self) -> None:
        """The format's own library adds rows."""
        rows = self.some_rows()
        self.steps.append(f"append {_texts(rows)}")
        try:
            self.keeper.append(rows)
        except UnableError as error:
            self.steps[-1] += f" ({error})"
            self.case.count("unable")
        self.learn(rows)

    def maintain(self) -> None:
        """The format's own library moves or removes rows."""
        try:
            self.steps.append(self.keeper.maintain())
        except UnableError as error:
            self.steps.append(f"unable: {error}")
            self.case.count("unable")
        self.learn()
        for view in self.views:
            view.past.clear() if self.keeper.format == "iceberg" else None

    def evolve(self) -> None:
        """The format's own library adds a column, or renames or drops one."""
        chance = self.chance
        self.added += 1
        name = f"x{self.added}"
        there = [n for n in self.columns if n[0] in "vx"]
        declared = {n for view in self.views if not view.on_read for n in view.columns}
        free = [n for n in there if n not in declared]
        act = chance.choice(["add", "add", "rename", "drop"]) if free else "add"
        try:
            if act == "add":
                kind = kind_of(chance.choice([t for t in self.keeper.types if "<" not in t]))
                self.keeper.evolve(name, kind)
                self.steps.append(f"add {name} {kind.sql()}")
            elif act == "rename":
                old = chance.choice(free)
                self.keeper.rename(old, name)
                self.steps.append(f"rename {old} to {name}")
                for version in self.versions:
                    version.row[name] = version.row.pop(old, None)
            else:
                old = chance.choice(free)
                self.keeper.drop(old)
                self.steps.append(f"drop {old}")
        except UnableError:
            return
        for version in self.versions:
            version.row = {n: version.row.get(n) for n in self.columns}
        self.learn()
        for view in self.views:
            view.stale.add(self.keeper.version())
            if view.name == "far.t":
                view.columns = self.columns
            elif view.on_read:
                self.refresh(view)

    def refresh(self, view: View) -> None:
        """The columns are taken anew."""
        table = self.lake.table("e")
        made = self.case.attempt(f"refresh after {self.told}", table.refresh)
        if made is not True:
            self.case.note("rows", "refresh", f"{made} after {self.told}")
        view.columns, view.past = dict(self.columns), {}

    def at_once(self) -> None:
        """The format's own library and a statement at the same time."""
        rows, sent = self.some_rows(), self.some_rows(distinct=True)
        self.steps.append(f"append {_texts(rows)} at once with write {_texts(sent)}")
        given, told = self.keeper.arrow(sent), self.told

        def append() -> None:
            try:
                self.keeper.append(rows)
            except UnableError:
                self.case.count("unable")

        other = Thread(target=append)
        other.start()
        made = self.case.attempt(told[-1_200:], lambda: self.far.write(given)) if sent else None
        other.join()
        if isinstance(made, Refused) and not isinstance(made.error, kt.ConflictError):
            self.case.note("rows", "write at once is refused", f"{made.error} by {self.told}")
        self.learn()

    def write(self) -> None:
        """Rows are written as they are."""
        rows = self.some_rows()
        self.steps.append(f"write {_texts(rows)}")
        has_null = any(map(self._has_null, rows))
        made = self.done(lambda: self.far.write(self.keeper.arrow(rows)), must_refuse=has_null)
        self.learn([] if isinstance(made, Refused) else rows)
        if made is not None and not isinstance(made, Refused) and made.rows != len(rows):
            self.case.note("rows", "rows written", f"{made} of {self.told}")

    def source(self, rows: list[Row]) -> str:
        """A table of the lake with some rows."""
        self.sources += 1
        name = f"src{self.sources}"
        fields = [kt.Field(-1, n, k) for n, k in self.columns.items()]
        self.lake.create_table(name, fields, []).write(self.keeper.arrow(rows))
        return name

    def insert(self) -> None:
        """INSERT of rows of a table of the lake, perhaps without some columns."""
        rows, chance = self.some_rows(distinct=True), self.chance
        names = [n for n in self.columns if n in self.keys.primary or chance.random() < 0.85]
        source = self.source(rows)
        listed = ", ".join(map(quoted, names))
        text = f"INSERT INTO far.t ({listed}) SELECT {listed} FROM {source}"
        self.steps.append(f"insert {names} {_texts(rows)}")
        count = self.done(lambda: self.lake.sql(text).row_count)
        if not isinstance(count, Refused) and count not in (None, len(rows)):
            self.case.note("rows", "rows inserted", f"{count} of {self.told}")
        self.learn()

    def update(self) -> None:
        """UPDATE of the rows that meet a condition."""
        chance, keys = self.chance, self.keys
        rows = self.shown()
        if rows is None:
            return
        fixed = {*keys.primary, *keys.watermark, self.keeper.partition}
        settable = [n for n, k in self.columns.items() if n not in fixed and k.sql() in _SET]
        sets: dict[str, tuple[str, Callable[[Row], Any]]] = {}
        for name in chance.sample(settable, min(len(settable), chance.choice([1, 2]))):
            text, v = chance.choice(_SET[self.columns[name].sql()])
            sets[name] = (text, lambda row, v=v: v)
        raises = [n for n in keys.watermark if self.columns[n].sql() == "BIGINT"]
        if raises and chance.random() < (0.9 if keys.dml == "explicit" else 0.2):
            for name in raises:
                sets[name] = (
                    f"{quoted(name)} + 1",
                    lambda row, n=name: None if row[n] is None else row[n] + 1,
                )
        if not sets:
            return
        where, test = self.condition(self.columns)
        hit = [row for row in rows if test(row) is True]
        made = {keys.of(row): {**row, **{n: of(row) for n, (_, of) in sets.items()}} for row in hit}
        expected = [made.get(keys.of(row), row) for row in rows]
        told = ", ".join(f"{quoted(n)} = {text}" for n, (text, _) in sets.items())
        text = f"UPDATE far.t SET {told} WHERE {where}"
        sets_all = {*keys.watermark} <= {*sets} and bool(keys.watermark)
        must = self._cannot_change() or (keys.dml == "explicit" and not sets_all)
        must = must or any(map(self._has_null, hit))
        may = any(n in sets for n in keys.watermark)
        if chance.random() < 0.5:
            self.change(text, lambda: self.lake.sql(text).row_count, hit, expected, must, may)
        else:
            given = {n: text for n, (text, _) in sets.items()}
            called = f"update({given}, {where})"
            self.change(
                called, lambda: self.far.update(given, where).rows, hit, expected, must, may
            )

    def delete(self) -> None:
        """DELETE of the rows that meet a condition."""
        rows = self.shown()
        if rows is None:
            return
        where, test = self.condition(self.columns)
        hit = [row for row in rows if test(row) is True]
        expected = [row for row in rows if test(row) is not True]
        must = self._cannot_delete() or any(map(self._has_null, hit))
        text = f"DELETE FROM far.t WHERE {where}"
        if self.chance.random() < 0.5:
            self.change(text, lambda: self.lake.sql(text).row_count, hit, expected, must)
        else:
            self.change(
                f"delete({where})", lambda: self.far.delete(where).rows, hit, expected, must
            )

    def merge(self) -> None:
        """MERGE of rows of a table of the lake."""
        keys, chance = self.keys, self.chance
        rows = self.shown()
        if rows is None or any("DOUBLE" in k or "FLOAT" in k for k in self._key_kinds()):
            return
        given = {keys.of(row): row for row in self.some_rows(distinct=True)}
        source = self.source(list(given.values()))
        on = " AND ".join(f"t.{quoted(n)} = s.{quoted(n)}" for n in keys.primary)
        matched = [row for row in rows if keys.of(row) in given and not self._has_null(row)]
        values = [n for n in self.columns if n[0] in "vx"]
        text, must, hit, made = f"MERGE INTO far.t AS t USING {source} AS s ON {on}", False, [], {}
        left = matched
        if chance.random() < 0.4:
            where, test = self.condition(self.columns, "t.")
            text += f" WHEN MATCHED AND {where} THEN DELETE"
            must |= self._cannot_delete()
            for row in [row for row in left if test(row) is True]:
                hit.append(row)
                made[keys.of(row)] = None
            left = [row for row in left if keys.of(row) not in made]
        if values and chance.random() < 0.8:
            sets = ", ".join(f"{quoted(n)} = s.{quoted(n)}" for n in values)
            text += f" WHEN MATCHED THEN UPDATE SET {sets}"
            must |= self._cannot_change() or keys.dml == "explicit"
            hit += left
            made |= {
                keys.of(row): {**row, **{n: given[keys.of(row)][n] for n in values}} for row in left
            }
        fresh = [row for key, row in given.items() if key not in {keys.of(row) for row in matched}]
        if chance.random() < 0.8 or " WHEN " not in text:
            listed = ", ".join(map(quoted, self.columns))
            of_source = ", ".join(f"s.{quoted(n)}" for n in self.columns)
            text += f" WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({of_source})"
        else:
            fresh = []
        expected = [made.get(keys.of(row), row) for row in rows]
        certain = None if fresh else [row for row in expected if row is not None]
        self.steps.append(f"source {_texts(list(given.values()))}")
        self.change(text, lambda: self.lake.sql(text).row_count, [*hit, *fresh], certain, must)

    def move(self) -> None:
        """UPDATE of a primary key."""
        keys = self.keys
        rows = self.shown()
        names = [
            n for n in keys.primary if self.columns[n].sql() in _SET and n != self.keeper.partition
        ]
        if not rows or not names or keys.dml == "explicit":
            return
        name = self.chance.choice(names)
        where, test = self.condition({n: self.columns[n] for n in keys.primary})
        hit = [row for row in rows if test(row) is True]
        text, v = self.chance.choice(
            [each for each in _SET[self.columns[name].sql()] if each[1] is not None]
        )
        made = [{**row, name: v} for row in hit]
        others = [row for row in rows if test(row) is not True]
        expected = [*others, *made]
        twice = len({keys.of(row) for row in expected}) < len(expected)
        moves = any(row[name] != v for row in hit)
        must = self._cannot_delete() or (bool(hit) and twice) or any(map(self._has_null, made))
        must = must or any(map(self._has_null, hit))
        text = f"UPDATE far.t SET {quoted(name)} = {text} WHERE {where}"
        self.change(text, lambda: self.lake.sql(text).row_count, hit, expected, must, may=moves)

    def _key_kinds(self) -> list[str]:
        return [self.columns[n].sql() for n in self.keys.primary]

    def _cannot_change(self) -> bool:
        keys = self.keys
        return not self.keeper.is_ordered and (not keys.watermark or keys.dml == "copy")

    def _cannot_delete(self) -> bool:
        return self._cannot_change() or self.keys.tombstone is None or self.keys.dml == "explicit"

    def change(
        self, told: str, act: Callable[[], int | None], hit: list[Row], expected: list[Row] | None,
        must: bool = False, may: bool = False,
    ) -> None:  # fmt: skip
        """A statement that changes rows, what it counts, and what is shown then."""
        before = self.shown()
        self.steps.append(told)
        count = self.done(act, must_refuse=must, may_refuse=may or must)
        self.learn()
        now = self.shown()
        if self.case.findings or before is None or now is None:
            return
        if isinstance(count, Refused):
            expected = before
        elif count != len(hit):
            self.case.note("rows", "rows changed", f"{count}, not {len(hit)} by {self.told}")
        if expected is None:
            return
        dead = [row for row in expected if self.keys.is_dead(row)]
        expected = [row for row in expected if row not in dead]
        free = self.keys.watermark if self.keys.dml == "statement-time" else []
        has, wants = (
            sorted(_alike({**row, **dict.fromkeys(free)}) for row in rows)
            for rows in (now, expected)
        )
        if has != wants:
            more, less = _difference(has, wants)
            place = told.split(" ")[0].split("(")[0].lower()
            self.case.note(
                "rows",
                f"{place} of {self.keeper.format}",
                f"has {more}, lacks {less} after {self.told}",
            )

    def done(
        self, act: Callable[[], Any], *, must_refuse: bool = False, may_refuse: bool = False
    ) -> Any:
        """What a call gives, which may be refused for a reason only."""
        made = self.case.attempt(self.told[-1_200:], act)
        if isinstance(made, Refused):
            # A time after the last one that there is has no text.
            if not (must_refuse or may_refuse or "is in the year" in str(made.error)):
                place = f"{self.steps[-1].split(' ')[0].split('(')[0].lower()} is refused"
                self.case.note(
                    "rows", f"{place}, {_gist(made.error)}", f"{made.error} by {self.told}"
                )
        elif must_refuse and not may_refuse:
            self.case.note("rows", "taken", f"{self.steps[-1][:300]} in {self.told}")
        return made

    # -- what is looked at ---------------------------------------------------------------------

    def shown(self) -> list[Row] | None:
        """The rows that the federated table shows."""
        found = self.case.attempt(
            f"scan after {self.told[-1_200:]}", lambda: self.far.scan().to_arrow()
        )
        return None if isinstance(found, Refused) else _rows(found)

    def check(self, view: View) -> None:
        """Whether a view shows what it has to, in several ways."""
        table = self.case.attempt("table", lambda: self.lake.table(view.name))
        if isinstance(table, Refused):
            return
        allowed = self.rows_of(view)
        found = self.case.attempt(
            f"{view.name} after {self.told[-1_200:]}", lambda: self.read(view, table)
        )
        if allowed is None or isinstance(found, Refused):
            if (allowed is None) != isinstance(found, Refused):
                told = found.error if isinstance(found, Refused) else f"{found.num_rows} rows"
                self.case.note("rows", f"refusal of {view.name}", f"{told} after {self.told}")
            return
        rows = _rows(found)
        self.case.count("looks")
        if not self.compare(view, "scan", rows, allowed):
            return
        if (version := self.keeper.version()) is not None and version not in view.stale:
            view.past.setdefault(version, (dict(view.columns), rows))
        for look in self.chance.sample(
            [self.look_up, self.select, self.travel, self.tell, self.query], 2
        ):
            if not self.case.findings:
                look(view, table, rows)

    def read(self, view: View, table: Any) -> pa.Table:
        """Everything, in one of several ways."""
        scan = table.scan()
        how = self.chance.choice(["arrow", "batches", "sql", "polars"])
        if how == "batches":
            return pa.Table.from_batches(scan.to_batches(), scan.schema)
        if how == "sql":
            return self.lake.sql(f"SELECT * FROM {view.name}").to_arrow().cast(scan.schema)
        if how == "polars":
            from keytide.format.arrow import to_arrow

            return to_arrow(scan.to_polars(), scan.schema)
        return scan.to_arrow()

    def compare(
        self, view: View, what: str, rows: list[Row], allowed: Mapping[str, Sequence[Row | None]]
    ) -> bool:
        """Whether rows are what each key may be."""
        keys, wrong = self.keys, []
        seen: Counter[str] = Counter(keys.of(row) for row in rows)
        for row in rows:
            some = allowed.get(keys.of(row), [])
            if _alike(row) not in {_alike(each) for each in some if each is not None}:
                wrong.append(f"has {brief(row)}, not {brief(some)}")
        wrong += [f"{key} twice" for key, count in seen.items() if count > 1]
        wrong += [
            f"lacks {brief(some)}"
            for key, some in allowed.items()
            if None not in some and key not in seen
        ]
        if wrong:
            self.case.note(
                "rows", f"{what} of {view.name[:3]} {self.keeper.format}",
                f"{what} of {view.name}: {wrong[:3]} after {self.told}",
            )  # fmt: skip
        return not wrong

    def same(
        self, view: View, what: str, found: Any, wanted: list[Row], names: Sequence[str]
    ) -> None:
        """Whether a read gives some rows, of these columns."""
        if isinstance(found, Refused):
            self.case.note("rows", f"{what.split(' ')[0]} is refused, {_gist(found.error)}",
                           f"{what}: {found.error} after {self.told}")  # fmt: skip
            return
        has, wants = (
            sorted(_alike({n: row[n] for n in names}) for row in rows)
            for rows in (_rows(found), wanted)
        )
        if has != wants or list(found.column_names) != list(names):
            more, less = _difference(has, wants)
            place = f"{what.split(' ')[0]} of {view.name[:3]} {self.keeper.format}"
            told = f"{what} of {view.name} has {more}, lacks {less} after {self.told}"
            self.case.note("rows", place, told)

    def condition(self, columns: Columns, prefix: str = "") -> tuple[str, Test]:
        """A condition over columns, however they are called."""
        aliases = {f"zz{i}zz": name for i, name in enumerate(columns)}
        text, test = condition(self.chance, {a: columns[n] for a, n in aliases.items()})
        spelled = re.sub("zz[0-9]+zz", lambda found: prefix + quoted(aliases[found[0]]), text)
        return spelled, lambda row: test({a: row[n] for a, n in aliases.items()})

    def look_up(self, view: View, table: Any, rows: list[Row]) -> None:
        """One key, several keys, and why they are what they are."""
        keys = self.keys
        candidates = [*rows, *(_with_zeros(v.row) for v in self.versions)]
        if not candidates:
            return
        some = self.chance.sample(candidates, min(3, len(candidates)))
        given = [
            {n: array([row[n]], view.columns[n])[0].as_py() for n in keys.primary} for row in some
        ]
        wanted = [row for row in rows if keys.of(row) in {keys.of(each) for each in some}]
        if any(None in each.values() for each in given):
            return
        many = self.case.attempt(
            f"get_many({given}) after {self.told[-900:]}", lambda: table.get_many(given)
        )
        self.same(view, f"get_many {given}", many, wanted, list(view.columns))
        if all(k.sql() in AS_PYTHON for k in view.columns.values()):
            first = [row for row in wanted if keys.of(row) == keys.of(some[0])]
            for name in ("get", "why"):
                got = self.case.attempt(
                    f"{name}({given[0]}) after {self.told[-900:]}",
                    lambda name=name: _one(getattr(table, name)(given[0]), view.columns),
                )
                self.same(view, f"{name} {given[0]}", got, first, list(view.columns))
            count = sum(
                keys.of(_with_zeros(v.row)) == keys.of(_with_zeros(some[0])) for v in self.versions
            )
            told = self.case.attempt("why", lambda: table.why(given[0]).versions.num_rows)
            if not isinstance(told, Refused) and told != count:
                self.case.note(
                    "rows",
                    "versions of why",
                    f"{told}, not {count} of {given[0]} after {self.told}",
                )

    def select(self, view: View, table: Any, rows: list[Row]) -> None:
        """Some columns of the rows that meet a condition."""
        names = self.chance.sample(list(view.columns), self.chance.randint(1, len(view.columns)))
        where, test = self.condition(view.columns)
        wanted = [row for row in rows if test(row) is True]
        if view.policy == "error" or self.is_vague(view):
            return
        found = self.case.attempt(
            f"where {where} after {self.told[-1_000:]}",
            lambda: table.scan(columns=names, where=where).to_arrow(),
        )
        self.same(view, f"where {names} {where}", found, wanted, names)
        count = self.case.attempt("count", lambda: table.scan(where=where).count())
        if not isinstance(count, Refused) and count != len(wanted):
            self.case.note(
                "rows", "count", f"{count}, not {len(wanted)} of {where} after {self.told}"
            )

    def is_vague(self, view: View) -> bool:
        """Whether several rows would do."""
        allowed = self.rows_of(view)
        return allowed is None or any(
            len({repr(each) for each in some}) > 1 for some in allowed.values()
        )

    def query(self, view: View, table: Any, rows: list[Row]) -> None:
        """The same, of SQL."""
        names = [n for n in view.columns if view.columns[n].sql() in AS_PYTHON]
        where, test = self.condition(view.columns)
        wanted = [row for row in rows if test(row) is True]
        if view.policy == "error" or self.is_vague(view) or not names:
            return
        text = f"SELECT {', '.join(map(quoted, names))} FROM {view.name} WHERE {where}"
        found = self.case.attempt(
            f"{text} after {self.told[-900:]}", lambda: self.lake.sql(text).to_arrow()
        )
        self.same(view, f"sql {text}", found, wanted, names)

    def travel(self, view: View, table: Any, rows: list[Row]) -> None:
        """An older version."""
        if not view.past:
            return
        version = self.chance.choice(list(view.past))
        columns, wanted = view.past[version]
        if columns.keys() != view.columns.keys() and view.name == "e":
            return
        told = f"version {version} after {self.told[-1_000:]}"
        if self.chance.random() < 0.5:
            found = self.case.attempt(told, lambda: table.scan(version=version).to_arrow())
        else:
            text = f"SELECT * FROM {view.name} VERSION AS OF {version}"
            found = self.case.attempt(told, lambda: self.lake.sql(text).to_arrow())
        self.same(view, f"version {version}", found, wanted, list(columns))

    def tell(self, view: View, table: Any, rows: list[Row]) -> None:
        """What changed since an older version."""
        known = [
            v
            for v, (columns, _) in view.past.items()
            if view.name == "far.t" or columns.keys() == view.columns.keys()
        ]
        if not known:
            return
        version = self.chance.choice(known)
        # What the older version lacks is NULL there.
        then = [{n: row.get(n) for n in view.columns} for row in view.past[version][1]]
        found = self.case.attempt(
            f"changes from {version} after {self.told[-1_000:]}",
            lambda: table.changes(version).to_arrow(),
        )
        if isinstance(found, Refused):
            self.case.note("rows", "changes are refused", f"{found.error} after {self.told}")
            return
        kinds = found.column("_row_kind").to_pylist()
        told = Counter(_alike(row) for row in then)
        for kind, row in zip(kinds, _rows(found.drop_columns(["_row_kind"])), strict=True):
            told[_alike(row)] += (
                1 if kind[0] == "+" and kind != "+X" and kind in ("+I", "+U") else -1
            )
        if +told != Counter(_alike(row) for row in rows) or min(told.values(), default=0) < 0:
            self.case.note(
                "rows",
                f"changes of {self.keeper.format}",
                f"from {version} {kinds} after {self.told}",
            )


_SET: dict[str, list[tuple[str, Any]]] = {
    "INT": [("7", 7), ("NULL", None), ("0", 0)],
    "BIGINT": [("7", 7), ("NULL", None), ("0", 0)],
    "STRING": [("'q'", "q"), ("'it''s %'", "it's %"), ("''", ""), ("NULL", None), ("'a'", "a")],
    "BOOLEAN": [("TRUE", True), ("FALSE", False), ("NULL", None)],
    "DOUBLE": [("1.5", 1.5), ("NULL", None)],
    "DATE": [("DATE '2024-02-29'", 19_782), ("NULL", None)],
}


def _with_zeros(row: Row) -> Row:
    return {n: v + 0.0 if isinstance(v, float) else v for n, v in row.items()}


def _alike(row: Row | None) -> str:
    """A text of a row that is the same for equal rows: no zero has a sign."""
    return repr(None if row is None else list(_with_zeros(row).items()))


def _rows(table: pa.Table) -> list[Row]:
    columns = [plain(column) for column in table.columns]
    return [
        dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)
    ]


def _one(found: Any, columns: Columns) -> pa.Table:
    row = getattr(found, "row", found)
    return pa.table(
        {n: pa.array([] if row is None else [row[n]], k.to_arrow()) for n, k in columns.items()}
    )


def _texts(rows: list[Row]) -> str:
    return str([[brief(v) for v in row.values()] for row in rows[:9]])


def _difference(has: list[str], wants: list[str]) -> tuple[list[str], list[str]]:
    more, less = Counter(has) - Counter(wants), Counter(wants) - Counter(has)
    return [text[:300] for text in more][:3], [text[:300] for text in less][:3]


def _gist(error: Exception) -> str:
    """What an error is about, whatever it names."""
    return re.sub(r"[^A-Za-z ]+", "", re.sub(r"'[^']*'|\d+", "", str(error)))[-50:]
