"""Random tables with random histories, compared after every step with a dict in plain Python."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import behind_writers
import polars as pl
import pyarrow as pa
from fuzz_case import Case, Refused, brief
from fuzz_columns import KEYS, ORDERS, PLAIN, array, kind_of, plain, value
from fuzz_oracle import Definition, Oracle, Version
from fuzz_where import condition

import keytide as kt
from keytide.definition import schema_evolution

__all__ = ["run"]

Row = dict[str, Any]
ROW_KIND = "_row_kind"


def run(case: Case) -> None:
    """One table and its history."""
    definition, options = _definition(case.chance)
    lake = case.lake()
    fields = [kt.Field(-1, name, kind) for name, kind in definition.columns.items()]
    columns = [f.sql() for f in fields]
    told = f"create_table({columns}, {definition.key}, {definition.partition}, {options})"
    table = case.attempt(
        told, lambda: lake.create_table("t", fields, definition.key, definition.partition, options)
    )
    if isinstance(table, Refused):
        case.note("rows", "a table is refused", f"{told}: {brief(str(table.error))}")
        return
    history = History(case, lake, [table, lake.table("t")], Oracle(definition))
    for _ in range(case.chance.choice([2, 5, 9])):
        if case.findings:
            return  # what follows would only repeat it
        case.chance.choices([act for act, _ in _ACTS], [weight for _, weight in _ACTS])[0](history)
        history.check()


# -- definitions -----------------------------------------------------------------------------------


def _definition(chance: random.Random) -> tuple[Definition, dict[str, str]]:
    keys = [chance.choice(KEYS) for _ in range(chance.choice([1, 1, 2, 3]))]
    values = [chance.choice(PLAIN) for _ in range(chance.choice([0, 1, 3]))]
    orders = [chance.choice(ORDERS) for _ in range(chance.choice([0, 0, 1, 2]))]
    columns = {
        **{f"k{i}": kind_of(text) for i, text in enumerate(keys)},
        **{f"v{i}": kind_of(text) for i, text in enumerate(values)},
        **{f"s{i}": kind_of(text) for i, text in enumerate(orders)},
    }
    made = Definition(columns, [f"k{i}" for i in range(len(keys))])
    made.sequence = [f"s{i}" for i in range(len(orders))]
    if len(keys) > 1 and chance.random() < 0.5:
        made.partition = made.key[: chance.choice(range(1, len(keys)))]
    options = behind_writers.OFTEN | chance.choice(_BUCKETS)
    options |= chance.choice(_LAYOUTS)
    _order(made, options, chance)
    _engine(made, options, chance)
    names = list(made.columns)
    chance.shuffle(names)
    made.columns = {name: made.columns[name] for name in names}
    return made, options


_BUCKETS: list[dict[str, str]] = [
    {"bucket": "1"}, {"bucket": "1"}, {"bucket": "2"}, {"bucket": "4"}, {"bucket": "-1"},
    {"bucket": "-1", "dynamic-bucket.target-row-num": "2"},
    {
        "bucket": "-1", "dynamic-bucket.target-row-num": "1", "dynamic-bucket.max-buckets": "3",
        "dynamic-bucket.initial-buckets": "2",
    },
]  # fmt: skip
_LAYOUTS: list[dict[str, str]] = [
    {}, {}, {"target-file-size": "1 kb"}, {"read.memory": "1 kb"}, {"file.compression": "snappy"},
    {"metadata.stats-mode": "none"}, {"metadata.stats-mode": "counts"},
    {"write-buffer-size": "1 kb"},
    {"metadata.stats-mode": "full"}, {"manifest.merge-min-count": "2"},
    {"write.count-out-of-order": "true"}, {"partition.legacy-name": "false"},
    {"data-file.path-directory": "data"}, {"data-file.prefix": "x-"}, {"file.compression": "none"},
]  # fmt: skip


def _order(made: Definition, options: dict[str, str], chance: random.Random) -> None:
    if not made.sequence:
        return
    if chance.random() < 0.3:
        options["watermark.key"] = ",".join(made.sequence)
        if chance.random() < 0.6:
            made.tombstone = "dead"
            made.columns["dead"] = kind_of(chance.choice(["BOOLEAN", "STRING", "INT"]))
            options["tombstone.key"] = "dead"
            if made.columns["dead"].sql() == "STRING" and chance.random() < 0.5:
                made.marker = options["tombstone.string-key-value"] = "x"
        return
    options["sequence.field"] = ",".join(made.sequence)
    if chance.random() < 0.3:
        made.descending = True
        options["sequence.field.sort-order"] = "descending"


def _engine(made: Definition, options: dict[str, str], chance: random.Random) -> None:
    """An engine; those that fold values get no deletes here."""
    ignoring = chance.random() < 0.2
    if made.tombstone is not None or chance.random() < 0.55:
        if ignoring:
            option = chance.choice(["ignore-delete", "ignore-update-before"])
            options[option] = "true"
            made.ignores = frozenset({"-U", "-D"} if option == "ignore-delete" else {"-U"})
        return
    engines = ["partial-update", "aggregation", *([] if made.sequence else ["first-row"])]
    made.engine = options["merge-engine"] = chance.choice(engines)
    made.ignores = frozenset({"-U", "-D"})
    options["ignore-delete"] = "true"
    if made.engine == "partial-update" and not made.sequence and chance.random() < 0.6:
        made.columns["g"] = kind_of(chance.choice(["INT", "STRING", "TIMESTAMP(6)"]))
        made.group = [n for n in made.columns if n[0] == "v" and chance.random() < 0.7]
        if made.group:
            options["fields.g.sequence-group"] = ",".join(made.group)
    if made.engine == "aggregation":
        for name, kind in made.columns.items():
            if name.startswith("v"):
                function = chance.choice(_functions(kind.sql()))
                made.functions[name] = options[f"fields.{name}.aggregate-function"] = function


def _functions(kind: str) -> list[str]:
    found = ["last_value", "last_non_null_value", "first_value", "first_non_null_value"]
    if kind in ("BOOLEAN",):
        found += ["bool_and", "bool_or"]
    if kind in ("INT", "DATE", "SMALLINT", "STRING"):
        found += ["max", "min"]
    if kind == "STRING":
        found += ["listagg"]
    if kind in ("INT", "BIGINT"):
        found += ["sum"] * 3
    return found


# -- a history -------------------------------------------------------------------------------------


@dataclass
class History:
    """A table, two objects that hold it, and what it has to show."""

    case: Case
    lake: kt.Lake
    tables: list[kt.Table]
    oracle: Oracle
    past: dict[int, tuple[list[str], list[Row]]] = field(default_factory=dict)
    added: int = 0

    @property
    def table(self) -> kt.Table:
        """One of the two objects."""
        return self.case.chance.choice(self.tables)

    @property
    def definition(self) -> Definition:
        """What the table looks like."""
        return self.oracle.definition

    def batch(self, size_max: int = 12) -> list[Version]:
        """Rows to write."""
        chance, _made = self.case.chance, self.definition
        size = chance.choice([0, 1, 1, 3, size_max])
        kinds = ["+I", "+U", "-U", "-D"] if chance.random() < 0.7 else ["+I"]
        return [Version(self.row(), chance.choice(kinds)) for _ in range(size)]

    def row(self) -> Row:
        """A row."""
        chance, made = self.case.chance, self.definition
        return {
            name: value(kind, chance, few=True) if name in made.key
            else chance.choice([-2, 0, 1, 5, None]) if made.functions.get(name) == "sum"
            else value(kind, chance, 0.7 if name == "dead" else 0.25, few=name in made.sequence)
            for name, kind in made.columns.items()
        }  # fmt: skip

    def keep(self, snapshot_id: int | None) -> None:
        """Remember what a snapshot has to show."""
        if snapshot_id is not None:
            self.past[snapshot_id] = (list(self.definition.columns), self.oracle.rows())

    def compare(
        self, what: str, read: Callable[[], pa.Table], names: list[str], rows: list[Row]
    ) -> None:
        """Compare what a read gives with rows of these columns."""
        found = self.case.attempt(what, read)
        if isinstance(found, Refused):
            self.case.note("rows", f"{what.split('(')[0]} is refused", f"{what}: {found.error}")
            return
        has = _told([plain(found.column(n)) for n in names], found.num_rows)
        wants = _told([[row[n] for row in rows] for n in names], len(rows))
        if has != wants or list(found.column_names) != names:
            more = [row for row in has if row not in wants][:3]
            less = [row for row in wants if row not in has][:3]
            self.case.note(
                "rows", f"{what.split('(')[0]} of {self.definition.engine}",
                f"{what} {names}: {len(has)} rows, not {len(wants)}; has {more}, lacks {less}; "
                f"{self.table.options} {self.table.schema.to_string()}",
            )  # fmt: skip

    def check(self) -> None:
        """Compare a read of everything, and one of another kind."""
        names, rows = list(self.definition.columns), self.oracle.rows()
        reader = self.case.chance.choice(list(_READERS))
        table = self.table
        self.compare(f"{reader}()", lambda: _READERS[reader](table), names, rows)
        if not self.case.findings:
            self.case.chance.choice(_CHECKS)(self)


def _told(columns: list[list[Any]], count: int) -> list[str]:
    return sorted(map(repr, zip(*columns, strict=True))) if columns else ["()"] * count


_READERS: dict[str, Callable[[kt.Table], pa.Table]] = {
    "to_arrow": lambda t: t.scan().to_arrow(),
    "to_batches": lambda t: pa.Table.from_batches(t.scan().to_batches(), t.scan().schema),
    "to_polars": lambda t: _exact(t.scan().to_polars(), t.scan().schema),
    "reopened": lambda t: kt.open_table(t.uri).scan().to_arrow(),
}


def _exact(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    from keytide.format.arrow import to_arrow

    return to_arrow(frame, schema)


# -- what is done ----------------------------------------------------------------------------------


def _write(history: History) -> None:
    batch = history.batch()
    given = _container(history, batch)
    table = history.table
    told = f"write({[(*v.row.values(), v.kind) for v in batch]} as {type(given).__name__})"
    result = history.case.attempt(told, lambda: table.write(given))
    if isinstance(result, Refused):
        history.case.note(
            "rows", f"write of {type(given).__name__} is refused", f"{told}: {result.error}"
        )
        return
    commits = history.oracle.write(batch)
    if commits != (result.snapshot_id is not None):
        history.case.note("rows", "a commit of nothing", f"{told}: {result}")
    history.keep(result.snapshot_id)


def _write_at_once(history: History) -> None:
    """Two threads write at the same time; their snapshots tell who was first."""
    batches = [history.batch(), history.batch(4)]
    results: list[Any] = [None, None]

    def write(i: int) -> None:
        given = _arrow(history.definition, batches[i])
        results[i] = history.case.attempt(
            "write in a thread", lambda: history.tables[i].write(given)
        )

    threads = [threading.Thread(target=write, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(isinstance(result, Refused) for result in results):
        history.case.note("rows", "write in a thread is refused", brief(results))
        return
    for i in sorted((0, 1), key=lambda i: results[i].snapshot_id or 0):
        history.oracle.write(batches[i])
        history.keep(results[i].snapshot_id)


_WRITER = """
import sys, pyarrow as pa, keytide as kt
rows = pa.ipc.open_file(sys.argv[2]).read_all()
print(kt.open_table(sys.argv[1]).write(rows).snapshot_id or 0)
"""


def _write_elsewhere(history: History) -> None:
    """Another process writes while this one does."""
    mine, theirs = history.batch(), history.batch()
    table = history.table
    file = history.case.folder / "rows.arrow"
    rows = _arrow(history.definition, theirs)
    with pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    other = subprocess.Popen(
        [sys.executable, "-c", _WRITER, table.uri, str(file)], stdout=subprocess.PIPE, text=True
    )
    given = _arrow(history.definition, mine)
    result = history.case.attempt("write beside a process", lambda: table.write(given))
    told, _ = other.communicate()
    if isinstance(result, Refused) or other.returncode:
        history.case.note("rows", "write beside a process is refused", f"{result} {told}")
        return
    commits = [(result.snapshot_id or 0, mine), (int(told), theirs)]
    for number, batch in sorted(commits, key=lambda commit: commit[0]):
        history.oracle.write(batch)
        history.keep(number or None)


def _overwrite(history: History) -> None:
    made, chance = history.definition, history.case.chance
    batch = [v for v in history.batch(4) if v.kind[0] == "+"] if chance.random() < 0.8 else []
    if made.tombstone is not None:
        batch = []
    partition: dict[str, Any] | None = None
    if made.partition and chance.random() < 0.5:
        named = made.partition[: chance.choice(range(1, len(made.partition) + 1))]
        partition = {name: value(made.columns[name], chance, few=True) for name in named}
        batch = [Version({**v.row, **partition}, v.kind) for v in batch]
    touched = {made.partition_of(v.row) for v in batch}

    def replaces(row: Row) -> bool:
        if partition is not None:
            stored = made.key_value
            return all(repr(stored(n, row[n])) == repr(stored(n, v)) for n, v in partition.items())
        return not made.partition or made.partition_of(row) in touched

    given, table = _arrow(made, batch), history.table
    told = f"overwrite({[tuple(v.row.values()) for v in batch]}, {partition})"
    spec = (
        None
        if partition is None
        else {n: array([v], made.columns[n])[0] for n, v in partition.items()}
    )
    result = history.case.attempt(told, lambda: table.overwrite(given, spec))
    if isinstance(result, Refused):
        history.case.note("rows", "overwrite is refused", f"{told}: {result.error}")
        return
    history.oracle.overwrite(batch, replaces)
    history.keep(result.snapshot_id)


def _truncate(history: History) -> None:
    table = history.table
    result = history.case.attempt("truncate()", table.truncate)
    if not isinstance(result, Refused):
        history.oracle.stored.clear()
        history.keep(result.snapshot_id)


def _reopen(history: History) -> None:
    history.tables[history.case.chance.randrange(2)] = history.lake.table("t")


def _alter(history: History) -> None:
    """Add, drop, rename or widen a column that nothing else names, or set an option."""
    made, chance = history.definition, history.case.chance
    named = {*made.functions, *made.group}
    free = [n for n in made.columns if n[0] in "vx" and n not in named]
    act = chance.choice(["add", "add", "drop", "rename", "widen", "option", "move"])
    table = history.table
    names = list(made.columns)
    if act == "add" and made.engine != "aggregation":
        history.added += 1
        name, text = f"x{history.added}", chance.choice(PLAIN)
        change: schema_evolution.SchemaChange = schema_evolution.AddColumn((name,), kind_of(text))
        names.append(name)
    elif act == "drop" and free and len(names) > 2:
        name = chance.choice(free)
        change = schema_evolution.DropColumn((name,))
        names.remove(name)
    elif act == "rename" and free:
        history.added += 1
        name = chance.choice(free)
        change = schema_evolution.RenameColumn((name,), f"x{history.added}")
        names[names.index(name)] = f"x{history.added}"
    elif act == "move" and len(names) > 1:
        name = chance.choice(names)
        change = schema_evolution.MoveColumn((name,), schema_evolution.First())
        names = [name, *(n for n in names if n != name)]
    elif act == "widen" and (narrow := [n for n in free if made.columns[n].sql() in _WIDER]):
        name = chance.choice(narrow)
        change = schema_evolution.ChangeColumnType(
            (name,), kind_of(_WIDER[made.columns[name].sql()])
        )
    else:
        name, setting = "", chance.choice(["1 mb", "1 kb"])
        change = schema_evolution.SetOption("read.memory", setting)
    if isinstance(history.case.attempt(f"alter({change})", lambda: table.alter(change)), Refused):
        history.case.note("rows", "alter is refused", f"{change}")
        return
    _follow(history, change, names)


_WIDER = {"TINYINT": "BIGINT", "SMALLINT": "INT", "INT": "BIGINT", "FLOAT": "DOUBLE",
          "VARCHAR(5)": "STRING", "DECIMAL(10, 2)": "DECIMAL(30, 2)",
          "VARBINARY(4)": "BYTES"}  # fmt: skip


def _follow(history: History, change: schema_evolution.SchemaChange, names: list[str]) -> None:
    made = history.definition
    old = list(made.columns)
    kinds = dict(made.columns)
    renamed: dict[str, str] = {}
    if isinstance(change, (schema_evolution.AddColumn, schema_evolution.ChangeColumnType)):
        kinds[change.path[0]] = change.type
    elif isinstance(change, schema_evolution.RenameColumn):
        renamed[change.new_name] = change.path[0]
        kinds[change.new_name] = kinds[change.path[0]]
    made.columns = {name: kinds[name] for name in names}

    def mapped(row: Row) -> Row:
        sources = {name: renamed.get(name, name) for name in names}
        return {name: row[source] if source in old else None for name, source in sources.items()}

    for versions in history.oracle.stored.values():
        versions[:] = [Version(mapped(v.row), v.kind) for v in versions]


def _sql_change(history: History) -> None:
    """DELETE and UPDATE of the rows of a condition."""
    made, chance = history.definition, history.case.chance
    if made.engine != "deduplicate" or made.ignores or made.tombstone is not None:
        return
    text, test = condition(chance, made.columns)
    table = history.table
    rows = [row for row in history.oracle.rows() if test(row) is True]
    plainly = [
        n for n in made.columns if n[0] == "v" and made.columns[n].sql() in ("INT", "STRING")
    ]
    if plainly and chance.random() < 0.6:
        name = chance.choice(plainly)
        literal, v = ("7", 7) if made.columns[name].sql() == "INT" else ("'q'", "q")
        statement = f"UPDATE t SET {name} = {literal} WHERE {text}"
        batch = [Version({**row, name: v}, "+U") for row in rows]
    else:
        statement = f"DELETE FROM t WHERE {text}"
        batch = [Version(row, "-D") for row in rows]
    before = table.snapshots()[-1].id if table.snapshots() else 0
    result = history.case.attempt(statement, lambda: history.lake.sql(statement))
    if isinstance(result, Refused):
        history.case.note("rows", "a change by SQL is refused", f"{statement}: {result.error}")
        return
    if result.row_count != len(rows):
        history.case.note(
            "rows", "rows changed by SQL", f"{statement}: {result.row_count}, not {len(rows)}"
        )
    history.oracle.write(batch)
    after = table.snapshots()[-1].id if table.snapshots() else 0
    if after > before:
        history.keep(after)


_ACTS: list[tuple[Callable[[History], None], int]] = [
    (_write, 12), (_write_at_once, 2), (_overwrite, 2), (_truncate, 1), (_reopen, 1), (_alter, 3),
    (_sql_change, 3), (_write_elsewhere, 1),
]  # fmt: skip


# -- containers ------------------------------------------------------------------------------------


def _arrow(made: Definition, batch: list[Version]) -> pa.Table:
    columns = {n: array([v.row[n] for v in batch], kind) for n, kind in made.columns.items()}
    return pa.table({**columns, ROW_KIND: pa.array([v.kind for v in batch], pa.string())})


def _container(history: History, batch: list[Version]) -> Any:
    chance = history.case.chance
    rows = _arrow(history.definition, batch)
    names = list(rows.column_names)
    chance.shuffle(names)
    rows = rows.select(names)
    simple = all(kind.sql() in _SURVIVE for kind in history.definition.columns.values())
    kinds = [
        "table",
        "chunks",
        "batch",
        "reader",
        *(["polars", "lazy", "dicts", "pandas"] if simple else []),
    ]
    kind = chance.choice(kinds)
    if kind == "table":
        return rows
    if kind == "chunks":
        cut = chance.randrange(len(batch) + 1)
        return pa.concat_tables([rows.slice(0, cut), rows.slice(cut)])
    if kind == "batch":
        return rows.combine_chunks().to_batches()[0] if len(batch) else rows
    if kind == "reader":
        return rows.to_reader(max_chunksize=2)
    if kind == "polars":
        return pl.DataFrame(rows)
    if kind == "lazy":
        return pl.DataFrame(rows).lazy()
    if kind == "dicts":
        return rows.to_pylist()
    import pandas as pd

    return rows.to_pandas(types_mapper=pd.ArrowDtype)


_SURVIVE = {"INT", "BIGINT", "SMALLINT", "TINYINT", "STRING", "VARCHAR(5)", "CHAR(3)", "BOOLEAN",
            "DOUBLE", "FLOAT", "DATE", "BYTES", "TIMESTAMP(6)", "DECIMAL(10, 2)", "VARBINARY(4)",
            "ARRAY<INT>", "TIMESTAMP(3)"}  # fmt: skip


# -- what is looked at -----------------------------------------------------------------------------


def _look_up(history: History) -> None:
    made, table = history.definition, history.table
    rows = history.oracle.rows()
    row = history.case.chance.choice(rows) if rows and history.case.often(0.7) else history.row()
    key = {name: array([row[name]], made.columns[name])[0].as_py() for name in made.key}
    if any(made.columns[n].sql().startswith("TIMESTAMP(9)") for n in made.key):
        return
    wanted = [r for r in rows if made.key_of(r) == made.key_of(row)]
    names = list(made.columns)

    def read(get: Callable[[Any], Any]) -> Callable[[], pa.Table]:
        def found() -> pa.Table:
            row = get(key)
            columns = {
                n: pa.array([] if row is None else [_as_given(row[n])], k.to_arrow())
                for n, k in made.columns.items()
            }
            return pa.table(columns)

        return found

    if all(kind.sql() in _SURVIVE for kind in made.columns.values()):
        history.compare(f"get({key})", read(table.get), names, wanted)
        history.compare(f"why({key})", read(lambda key: table.why(key).row), names, wanted)


def _as_given(v: Any) -> Any:
    return v


def _select(history: History) -> None:
    made, chance = history.definition, history.case.chance
    names = chance.sample(list(made.columns), chance.randrange(1, len(made.columns) + 1))
    text, test = condition(chance, made.columns)
    rows = [row for row in history.oracle.rows() if test(row) is True]
    table = history.table
    history.compare(
        f"where({text!r})", lambda: table.scan(columns=names, where=text).to_arrow(), names, rows
    )
    count = history.case.attempt(f"count({text!r})", lambda: table.scan(where=text).count())
    if count != len(rows) and not isinstance(count, Refused):
        history.case.note("rows", "count", f"count({text!r}): {count}, not {len(rows)}")


def _travel(history: History) -> None:
    if not history.past:
        return
    chance, table = history.case.chance, history.table
    number = chance.choice(list(history.past))
    names, rows = history.past[number]
    how = chance.choice(["snapshot_id", "tag", "as_of"])
    point: Any = number
    if how == "tag":
        point = f"tag{number}"
        store = table.metadata.store
        store.put(f"tag/tag-{point}", store.read(f"snapshot/snapshot-{number}"))
    elif how == "as_of":
        times = {s.id: s.time_millis for s in table.snapshots()}
        point = times[number]
        number = max(i for i in history.past if times[i] <= point)  # compactions change no rows
        names, rows = history.past[number]
    history.compare(
        f"travel({how}={point})", lambda: table.scan(**{how: point}).to_arrow(), names, rows
    )


def _query(history: History) -> None:
    made, chance = history.definition, history.case.chance
    text, test = condition(chance, made.columns)
    rows = [row for row in history.oracle.rows() if test(row) is True]
    simple = [n for n in made.columns if made.columns[n].sql() in _SURVIVE]
    if simple:
        statement = f"SELECT {', '.join(simple)} FROM t WHERE {text}"
        history.compare(
            f"sql({statement!r})", lambda: history.lake.sql(statement).to_arrow(), simple, rows
        )


def _system_tables(history: History) -> None:
    name = history.case.chance.choice(
        [
            "snapshots",
            "schemas",
            "options",
            "files",
            "buckets",
            "partitions",
            "manifests",
            "tags",
            "audit_log",
        ]
    )
    history.case.attempt(
        f"t${name}", lambda: history.lake.sql(f"SELECT * FROM t${name}").to_arrow()
    )


_CHECKS = [_look_up, _select, _travel, _query, _select, _system_tables]
