"""Published tables: after every step of any life, readers of Delta and Iceberg find the snapshot
that is said to be shown, whatever its columns are called and hold.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import behind_writers
import deltalake
import pyarrow as pa
from fuzz_case import Case, Refused
from fuzz_columns import array, kind_of, plain, value
from pyiceberg.table import StaticTable

import keytide as kt
from keytide.definition import schema_evolution
from keytide.publish.form import forget_publications
from keytide.types import DataType, quoted

__all__ = ["run"]

Row = dict[str, Any]
Columns = dict[str, DataType]

_KEYS = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "VARCHAR(5)", "CHAR(3)", "BYTES",
    "BINARY(3)", "DATE", "DECIMAL(10, 2)", "DECIMAL(30, 5)", "TIMESTAMP(3)", "TIMESTAMP(6)",
    "TIMESTAMP(3) WITH LOCAL TIME ZONE", "FLOAT", "DOUBLE", "DECIMAL(18, 0)", "INT", "STRING",
]  # fmt: skip
_VALUES = [
    *_KEYS, "ARRAY<INT>", "ARRAY<STRING>", "MAP<STRING, INT>", "ROW<a INT, b STRING>",
    "MULTISET<STRING>", "MAP<INT, ARRAY<STRING>>", "ARRAY<TIMESTAMP(6)>",
    "ROW<t TIMESTAMP(3), r ROW<d DATE>>",
]  # fmt: skip
_PARTITIONS = ["INT", "STRING", "DATE", "BOOLEAN", "BIGINT", "VARCHAR(5)", "TIMESTAMP(3)"]
_INDEXED = ["TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "DATE", "TIMESTAMP(3)"]
_NAMES = [
    "", "", "", "Größe", "it's", 'q"q', "per%cent", "-", "back`tick", "\\", "😀", "a.b", "#", ":x",
]  # fmt: skip
_BLANKS = ["a b", "{x}", "=", ";--", "a,b"]
"""What no name of a column of Delta may have."""
_KINDS: list[tuple[bool, dict[str, str]]] = [
    (True, {"upsert.mode": "full", "bucket": "2"}), (True, {"upsert.mode": "full"}),
    (True, {"upsert.mode": "partial"}), (False, {}), (False, {"bucket": "-1"}),
    (False, {"deletion-vectors.enabled": "true"}),
    (True, {"deletion-vectors.enabled": "true", "bucket": "1"}),
    (True, {"deletion-vectors.enabled": "true", "bucket": "-1"}),
    (True, {"bucket": "1", "num-sorted-run.compaction-trigger": "2"}), (True, {"bucket": "2"}),
    (True, {"bucket": "1", "merge-engine": "first-row"}),
    (True, {"bucket": "1", "merge-engine": "partial-update"}),
    (True, {"bucket": "1", "deletion-vectors.enabled": "true",
            "deletion-vectors.merge-on-read": "true"}),
]  # fmt: skip
_LAYOUTS: list[dict[str, str]] = [
    {}, {}, {"target-file-size": "1 kb"}, {"file.compression": "none"}, {"write-only": "true"},
    {"metadata.stats-mode": "none"}, {"metadata.stats-mode": "full"}, {"data-file.prefix": "x-"},
    {"metadata.stats-mode": "counts"}, {"manifest.merge-min-count": "2"},
    {"data-file.path-directory": "data"}, {"partition.legacy-name": "false"},
]  # fmt: skip


def run(case: Case) -> None:
    """One table and its life."""
    life = _begun(case)
    if life is None:
        return
    for _ in range(case.chance.choice([4, 8, 12])):
        if not life.step():
            return


def _begun(case: Case) -> Life | None:
    chance = case.chance
    form = chance.choice(["delta", "iceberg", "delta,iceberg", "delta,iceberg"])
    names = [*_NAMES, *(_BLANKS if form == "iceberg" else [])]
    has_key, kind = chance.choice(_KINDS)
    keys = _INDEXED if "upsert.mode" in kind else _KEYS
    columns = {f"k{i}": kind_of(chance.choice(keys)) for i in range(chance.choice([1, 1, 2]))}
    key, partition = list(columns) if has_key else [], []
    if chance.random() < 0.5:
        partition = [f"p{chance.choice(names)}"]
        columns[partition[0]] = kind_of(chance.choice(_PARTITIONS))
        key += partition if has_key else []
    for i in range(chance.choice([1, 2, 4])):
        columns[f"v{i}{chance.choice(names)}"] = kind_of(chance.choice(_VALUES))
    options = {**kind, **chance.choice(_LAYOUTS), "publish": form, "snapshot.num-retained.min": "1"}
    if has_key and "upsert.mode" not in kind:
        options = behind_writers.OFTEN | options
    fields = [kt.Field(-1, n, k) for n, k in columns.items()]
    told = f"{[f.sql() for f in fields]} {key} {partition} {options}"
    lake = case.lake()
    made = case.attempt(told, lambda: lake.create_table("t", fields, key, partition, options))
    if isinstance(made, Refused):
        if "comma-separated list" not in str(made.error):
            case.note("rows", "a table is refused", f"{told}: {made.error}")
        return None
    return Life(case, lake, made, columns, key, partition, told)


@dataclass
class Life:
    """A table that is published, and what its readers are to find."""

    case: Case
    lake: kt.Lake
    table: kt.Table
    columns: Columns
    key: list[str]
    partition: list[str]
    definition: str
    versions: dict[str, int] = field(default_factory=dict)
    expected: dict[str, tuple[pa.Schema, list[str]]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    names: int = 0

    @property
    def told(self) -> str:
        """What was done."""
        return f"{self.definition}: {'; '.join(self.steps)}"

    def step(self) -> bool:
        """Do something and look; false once something was found."""
        acts: list[Callable[[], Any]] = [
            *[self.write] * 6, *[self.delete] * 2, *[self.update] * 2, *[self.compact] * 3,
            *[self.alter] * 2, self.overwrite, self.truncate, self.expire, self.clean,
            self.roll_back, self.restore, self.tag, self.branch, self.rescale, self.convert,
            self.begin_anew, self.publish, self.option,
        ]  # fmt: skip
        act = self.case.chance.choice(acts)
        self.steps.append(act.__name__)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            done = self.case.attempt(f"{self.told}", act)
            behind_writers.wait()  # what is compacted is published, too
        failed = [str(each.message) for each in warned if "publishing" in str(each.message)]
        if failed:
            self.case.note("rows", "publishing failed", f"{failed} after {self.told}")
        elif isinstance(done, Refused) and not self.may_refuse(done.error):
            self.case.note("rows", f"{act.__name__} is refused", f"{done.error} after {self.told}")
        if not self.case.findings:
            self.check()
        return not self.case.findings

    def may_refuse(self, error: kt.KeytideError) -> bool:
        """Whether a refusal says what to do first."""
        hints = ("new bucket num", "cannot be altered", "rescale", "no new value")
        return isinstance(error, kt.UnsupportedError) or any(h in str(error) for h in hints)

    # -- what is done --------------------------------------------------------------------------

    def rows(self) -> pa.Table:
        """Rows to write."""
        chance = self.case.chance
        size = chance.choice([1, 2, 5, 9, 30])
        rows = [
            {
                n: value(
                    k, chance, 0.0 if n in self.key else 0.25, n in (*self.key, *self.partition)
                )
                for n, k in self.columns.items()
            }
            for _ in range(size)
        ]
        return pa.table({n: array([r[n] for r in rows], k) for n, k in self.columns.items()})

    def write(self) -> None:
        """A write."""
        self.table.write(self.rows())

    def overwrite(self) -> None:
        """An overwrite of the partitions that rows are in."""
        self.table.overwrite(self.rows())

    def truncate(self) -> None:
        """No row is left."""
        self.table.truncate()

    def condition(self) -> str:
        """Some of the rows."""
        name = self.case.chance.choice(list(self.columns))
        return f"{quoted(name)} IS {self.case.chance.choice(['', 'NOT '])}NULL"

    def delete(self) -> None:
        """A DELETE."""
        where = self.condition()
        if self.columns.get("k0") == kind_of("INT"):
            where = self.case.chance.choice([where, "k0 > 0", "k0 = 1"])
        self.steps[-1] += f" {where}"
        self.table.delete(where)

    def update(self) -> None:
        """An UPDATE, in SQL."""
        names = [n for n in self.columns if n[0] in "vx" and "<" not in self.columns[n].sql()]
        if names:
            text = f"UPDATE t SET {quoted(self.case.chance.choice(names))} = NULL WHERE "
            self.steps[-1] = text + self.condition()
            self.lake.sql(self.steps[-1])

    def compact(self) -> None:
        """A compaction."""
        full = self.case.often(0.6)
        self.steps[-1] += f" {full}"
        self.table.compact(full=full)

    def alter(self) -> None:
        """Another column, or another name, type or place of one."""
        chance, self.names = self.case.chance, self.names + 1
        free = [n for n in self.columns if n[0] in "vx"]
        kinds, change = dict(self.columns), None
        act = chance.choice(["add", "drop", "rename", "widen", "move"])
        if act == "add" or not free:
            name, kind = f"x{self.names}", kind_of(chance.choice(_VALUES))
            change, kinds[name] = schema_evolution.AddColumn((name,), kind), kind
        elif act == "drop":
            change = schema_evolution.DropColumn((name := chance.choice(free),))
            del kinds[name]
        elif act == "rename":
            name = chance.choice(free)
            # Sometimes a name that an older column had.
            to = f"x{chance.randint(1, self.names)}"
            change = schema_evolution.RenameColumn((name,), to)
            if to in kinds:
                return
            kinds = {to if n == name else n: k for n, k in kinds.items()}
        elif act == "move":
            name = chance.choice(list(kinds))
            change = schema_evolution.MoveColumn((name,), schema_evolution.First())
            kinds = {name: kinds.pop(name), **kinds}
        else:
            narrow = [n for n in free if kinds[n].sql() in _WIDER]
            if not narrow:
                return
            name = chance.choice(narrow)
            kinds[name] = kind_of(_WIDER[kinds[name].sql()])
            change = schema_evolution.ChangeColumnType((name,), kinds[name])
        self.steps[-1] += f" {change}"
        self.table.alter(change)
        self.columns = kinds

    def expire(self) -> None:
        """Fewer snapshots."""
        self.table.expire_snapshots(self.case.chance.randint(1, 3), 1)

    def clean(self) -> None:
        """No files that nobody names."""
        time.sleep(0.003)
        self.table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)

    def some_snapshot(self) -> int | None:
        """One that is there."""
        ids = [each.id for each in self.table.snapshots()]
        return self.case.chance.choice(ids) if ids else None

    def roll_back(self) -> None:
        """A rollback."""
        if (to := self.some_snapshot()) is not None:
            self.steps[-1] += f" {to}"
            self.table.rollback_to(to)
            # To before a conversion, the columns go back too.
            self.columns = {f.name: f.type for f in self.table.table_schema.fields}

    def restore(self) -> None:
        """What a snapshot showed comes back."""
        if (to := self.some_snapshot()) is not None:
            self.steps[-1] += f" {to}"
            self.table.restore(to)

    def tag(self) -> None:
        """A tag of a snapshot."""
        if (to := self.some_snapshot()) is not None:
            self.names += 1
            self.table.create_tag(f"t{self.names}", to)

    def branch(self) -> None:
        """A branch that is written to, and becomes the table."""
        if self.table.snapshots():
            self.names += 1
            self.table.create_branch(name := f"b{self.names}")
            self.table.branch(name).write(self.rows())
            if self.case.often(0.7):
                self.steps[-1] += " and fast forward"
                self.table.fast_forward(name, discard=True)

    def rescale(self) -> None:
        """Another number of buckets."""
        buckets = self.case.chance.randint(1, 3)
        if self.key and int(self.table.options.get("bucket", "-1")) > 0:
            self.steps[-1] += f" {buckets}"
            self.table.alter(schema_evolution.SetOption("bucket", str(buckets)))
            self.table.rescale()

    def convert(self) -> None:
        """The other kind of table."""
        if self.key:
            self.table.convert("none" if self.table.table_schema.is_indexed else "full")

    def begin_anew(self) -> None:
        """As a process that has published nothing yet."""
        forget_publications()
        self.table = self.case.lake().table("t")

    def publish(self) -> None:
        """A publication that nothing called for."""
        if "publish" in self.table.options:
            self.table.publish()

    def option(self) -> None:
        """Other forms, or none for a while."""
        forms = self.definition.split("'publish': '")[1].split("'")[0].split(",")
        chosen = self.case.chance.choice([",".join(forms), forms[0], forms[-1], None])
        self.steps[-1] += f" publish = {chosen}"
        if chosen is None:
            if "publish" in self.table.options:
                self.table.alter(schema_evolution.RemoveOption("publish"))
        else:
            self.table.alter(schema_evolution.SetOption("publish", chosen))

    # -- what is looked at ---------------------------------------------------------------------

    def check(self) -> None:
        """Whether readers find what is said to be shown."""
        told = self.case.attempt(
            f"t$publications after {self.told}",
            lambda: self.lake.sql("SELECT * FROM `t$publications`").to_pylist(),
        )
        if isinstance(told, Refused):
            self.case.note("rows", "publications", f"{told.error} after {self.told}")
            return
        for each in told:
            if each["version"] is not None:
                self.check_form(each["form"], each["version"], each["snapshot_id"])
            newest = each["snapshot_id"] == each["newest_snapshot_id"]
            # After a rollback, the newest snapshot may be another one with the same number.
            comes_again = newest and any("roll_back" in step for step in self.steps)
            has_reason = each["reason"] is not None
            if newest == has_reason and not comes_again and not each["is_stopped"]:
                self.case.note("rows", "reason", f"{each} after {self.told}")

    def check_form(self, form: str, version: int, snapshot_id: int) -> None:
        """Whether readers of a form find a snapshot."""
        if version != self.versions.get(form):
            shown = self.case.attempt(
                f"snapshot {snapshot_id} after {self.told}",
                lambda: self.table.scan(snapshot_id=snapshot_id).to_arrow(),
            )
            if isinstance(shown, Refused):
                self.case.note("rows", "snapshot that is shown", f"{shown.error}: {self.told}")
                return
            self.versions[form] = version
            self.expected[form] = shown.schema, _rows(shown, shown.schema)
        schema, wanted = self.expected[form]
        found = self.case.attempt(
            f"{form} after {self.told}", lambda: _rows(_READERS[form](self.table), schema)
        )
        self.case.count("looks")
        if not isinstance(found, Refused) and found != wanted:
            more = [row for row in found if row not in wanted][:3]
            less = [row for row in wanted if row not in found][:3]
            self.case.note(
                "rows", f"readers of {form}",
                f"{form}: {len(found)} rows, not {len(wanted)}; has {more}, lacks {less} of "
                f"snapshot {snapshot_id} after {self.told}",
            )  # fmt: skip


_WIDER = {"TINYINT": "BIGINT", "SMALLINT": "INT", "INT": "BIGINT", "FLOAT": "DOUBLE",
          "VARCHAR(5)": "STRING", "DECIMAL(10, 2)": "DECIMAL(30, 2)"}  # fmt: skip


def _delta(table: kt.Table) -> pa.Table:
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table.uri))
    return pa.table(found.execute("SELECT * FROM t"))


def _iceberg(table: kt.Table) -> pa.Table:
    return pa.table(StaticTable.from_metadata(table.uri).scan().to_arrow())


_READERS: dict[str, Callable[[kt.Table], pa.Table]] = {"delta": _delta, "iceberg": _iceberg}


def _rows(table: pa.Table, schema: pa.Schema) -> list[str]:
    """Rows in one form whoever read them, sorted."""
    assert table.column_names == schema.names, f"{table.column_names}, not {schema.names}"
    columns = [
        plain(pa.chunked_array(column.chunks, column.type).cast(field.type))
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return sorted(map(repr, zip(*columns, strict=True)))
