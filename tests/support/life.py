"""One of several processes that use the same tables for a long time, and may be killed at any step.

    python life.py WAREHOUSE NAME SEED STEPS

Each process owns the keys that end in its number, keeps a journal of what it wrote to them, and
knows from it, whenever it is begun anew, what its rows are. A write that was not answered is made
again under the same identity. Whatever else it does is checked at once; what is wrong ends it with
exit code 1 and the step on standard error.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import detours
import keytide as kt
from far import FarFolder
from lagging import LaggingFolder
from owned import Owned, make_owned, tend
from service import connect_by_service
from table_rows import dicts

SERVICE = "service"
FAR = "far"
LAGGING = "lagging"
CLOUD = "cloud"

TABLES: dict[str, dict[str, str]] = {
    "last": {"bucket": "2", "num-sorted-run.compaction-trigger": "3"},
    "latest": {"bucket": "1", "sequence.field": "s", "write-only": "true"},
    "merged": {
        "bucket": "-1", "dynamic-bucket.target-row-num": "20", "merge-engine": "partial-update",
    },
    "marked": {"bucket": "2", "deletion-vectors.enabled": "true", "sequence.field": "s"},
    "sums": {
        "bucket": "2", "merge-engine": "aggregation", "fields.v.aggregate-function": "sum",
        "fields.s.aggregate-function": "max", "changelog-producer": "none",
    },
}  # fmt: skip
KEYS = 12
_CACHE_BYTES = 1 << 20  # the least there can be, so that files leave it
PROCESSES = 3
# A write that was not answered is looked for among the snapshots that are kept.
KEPT_SNAPSHOTS = 150

Row = dict[str, Any]
Model = dict[int, Row]


def connect(warehouse: str) -> kt.Lake:
    """A lake in a folder, one that a table service keeps there, or one behind a small cache.

    Of one in a cloud the folder has the address, and the processes' notes.
    """
    kind, folder = ["", *warehouse.split(":", 1)][-2:]
    if kind == SERVICE:
        return connect_by_service(Path(folder))
    if kind == FAR:
        return kt.connect(
            "", store=FarFolder(folder), cache=f"{folder}-cache", cache_bytes=_CACHE_BYTES
        )
    if kind == LAGGING:
        return kt.connect("", store=LaggingFolder(folder))
    if kind == CLOUD:
        return kt.connect((Path(folder) / "address").read_text())
    return kt.connect(folder)


def make_tables(warehouse: str) -> None:
    """The tables that all processes use."""
    lake = connect(warehouse)
    fields = [
        kt.Field(-1, name, kt.parse_sql_type(text))
        for name, text in (("k", "INT NOT NULL"), ("v", "BIGINT"), ("s", "BIGINT"))
    ]
    for name, options in TABLES.items():
        lake.create_table(name, fields, ["k"], options=options)
    make_owned(lake, PROCESSES)
    detours.make_tables(lake)


def learn(name: str, model: Model, rows: list[Row]) -> None:
    """What rows make of those that there are."""
    for given in rows:
        row = {column: given[column] for column in ("k", "v", "s")}
        key, old = row["k"], model.get(given["k"])
        if given["_row_kind"] == "-D":
            model.pop(key, None)
        elif old is None or name in ("last", "latest", "marked"):
            model[key] = row
        elif name == "merged":
            model[key] = {c: old[c] if row[c] is None else row[c] for c in row}
        else:
            values = [v for v in (old["v"], row["v"]) if v is not None]
            model[key] = {
                "k": key,
                "v": sum(values) if values else None,
                "s": max(old["s"], row["s"]),
            }


class Life:
    """The steps of one process."""

    def __init__(self, warehouse: str, name: str, seed: int) -> None:
        self.lake, self.name, self.number = connect(warehouse), name, int(name.rsplit("-", 1)[1])
        here = Path(warehouse.rpartition(":")[2])
        self.journal = here / f"{name}.journal"
        self.tags = here / "tags"
        self.tags.mkdir(exist_ok=True)
        self.folder = here / "seen"
        self.folder.mkdir(exist_ok=True)
        self.models: dict[str, Model] = {table: {} for table in TABLES}
        self.done = 0
        self._remember()
        self.random = random.Random(seed * 1_000_003 + self.done)
        journal = here / f"{name}.owned.journal"
        self.owned = Owned(self.lake, self.number, journal)

    # -- what it wrote ---------------------------------------------------------------------------

    def _remember(self) -> None:
        """Read the journal, and make the write again that was not answered."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        asked: dict[int, Any] = {}
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn by a kill, and then nothing was written
            if "asked" in entry:
                asked[entry["asked"]] = entry
            elif "answered" in entry:
                given = asked.pop(entry["answered"])
                if given["table"] in TABLES:
                    learn(given["table"], self.models[given["table"]], given["rows"])
            self.done = max(self.done, entry.get("step", 0), entry.get("answered", 0))
        for entry in asked.values():
            if entry["table"] in TABLES:
                self._write(entry)
            self.done = max(self.done, entry["asked"])

    def _note(self, **entry: Any) -> None:
        with self.journal.open("a") as file:
            file.write(f"\n{json.dumps(entry)}")

    def _write(self, entry: dict[str, Any]) -> None:
        table = self.lake.table(entry["table"])
        table.write(entry["rows"], commit_user=self.name, commit_identifier=entry["asked"])
        self._note(answered=entry["asked"])
        learn(entry["table"], self.models[entry["table"]], entry["rows"])

    def ask(self, table: str, rows: list[Row]) -> None:
        """Write rows to a table whose rows nobody keeps in mind."""
        self._note(asked=self.done + 1, table=table, rows=rows)
        self.lake.table(table).write(rows, commit_user=self.name, commit_identifier=self.done + 1)

    # -- steps -----------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        """Go on until so many steps are done."""
        while self.done < steps:
            table, step = self.random.choice([*TABLES, *detours.TABLES]), self.done + 1
            actions = ACTIONS if table in TABLES else detours.ACTIONS
            ((action, _),) = self.random.choices(actions, [weight for _, weight in actions])
            try:
                action(self, table)
            except Exception as error:
                error.add_note(f"{self.name}, step {step}: {action.__name__} of {table}")
                raise
            self.done = step
            self._note(step=step)

    def write(self, table: str) -> None:
        """Some rows of its own keys."""
        chosen = self.random.sample(range(KEYS), self.random.randint(1, 4))
        kinds = ["+I"] if table in ("sums", "merged") else ["+I", "+I", "+I", "-D"]
        rows = [
            {"k": 10 * n + self.number, "v": self.random.choice([None, *range(9)]), "s": self.done,
             "_row_kind": self.random.choice(kinds)}
            for n in chosen
        ]  # fmt: skip
        entry = {"asked": self.done + 1, "table": table, "rows": rows}
        self._note(**entry)
        self._write(entry)

    def read(self, table: str) -> None:
        """Its own rows are as it knows them."""
        found = {row["k"]: row for row in self.lake.table(table).scan().to_pylist()}
        own = {k: row for k, row in found.items() if k % 10 == self.number}
        same(own, self.models[table])

    def get(self, table: str) -> None:
        """One row of its own."""
        key = 10 * self.random.randrange(KEYS) + self.number
        same(self.lake.table(table).get(key), self.models[table].get(key))

    def compact(self, table: str) -> None:
        """Fewer files."""
        self.lake.table(table).compact(full=self.random.random() < 0.3)

    def compact_manifests(self, table: str) -> None:
        """Fewer manifests."""
        self.lake.sql(f"CALL sys.compact_manifest('{table}')")

    def compaction_changed_nothing(self, table: str) -> None:
        """The rows before and after a compaction are the same, where it is not what shows them."""
        if table == "marked":
            return
        found = self.lake.table(table)
        compactions = [s.id for s in found.snapshots() if s.commit_kind.value == "COMPACT"]
        if compactions:
            self._of_kept(
                found, lambda n: same(rows_of(found, n - 1), rows_of(found, n)), compactions
            )

    def follow_changes(self, table: str) -> None:
        """The changes between two snapshots lead from the rows of one to those of the other."""
        found = self.lake.table(table)
        ids = [snapshot.id for snapshot in found.snapshots()][-40:]

        def check(end: int) -> None:
            start = self.random.choice([n for n in ids if n <= end])
            rows = {row["k"]: row for row in rows_of(found, start)}
            for change in found.changes(start, end).to_arrow().to_pylist():
                kind, key = change.pop("_row_kind"), change["k"]
                if kind in ("-D", "-U"):
                    same(rows.pop(key), change)
                else:
                    assert key not in rows, f"{kind} of {key}, which is there"
                    rows[key] = change
            same(sorted(rows.values(), key=lambda row: row["k"]), rows_of(found, end))

        self._of_kept(found, check, ids)

    def tag(self, table: str) -> None:
        """A name for a snapshot, and what it showed."""
        found, name = self.lake.table(table), f"{self.name}-{self.done}"

        def check(snapshot: int) -> None:
            rows = rows_of(found, snapshot)
            try:
                found.create_tag(name, snapshot)
            except kt.InvalidError:
                return  # killed in between, it is there already
            (self.tags / f"{table}.{name}").write_text(digest(rows))

        self._of_kept(found, check, [s.id for s in found.snapshots()])

    def look_at_tag(self, table: str) -> None:
        """What a tag names is what it was; then it may go, if it is its own."""
        noted = sorted(self.tags.glob(f"{table}.*"))
        if not noted:
            return
        chosen = self.random.choice(noted)
        found, name = self.lake.table(table), chosen.name.split(".", 1)[1]
        try:
            wanted = chosen.read_text()
            rows = dicts(found.scan(tag=name))
        except (kt.KeytideError, FileNotFoundError):
            assert not chosen.exists(), f"the tag {name} cannot be read"
            return
        assert not wanted or digest(rows) == wanted, f"the tag {name} shows other rows"
        if name.startswith(f"{self.name}-") and self.random.random() < 0.7:
            chosen.unlink()
            found.delete_tag(name)

    def expire(self, table: str) -> None:
        """Old snapshots go."""
        self.lake.table(table).expire_snapshots(
            retain_max=KEPT_SNAPSHOTS + 20, retain_min=KEPT_SNAPSHOTS, max_deletes=30
        )

    def verify(self, table: str) -> None:
        """Every invariant, while others go on."""
        found = self.lake.table(table).verify(quick=True)
        assert found.is_healthy, found

    def own(self, table: str) -> None:
        """A step in the life of the table that it owns: restored, rolled back, branched."""
        self.owned.step(self.random)

    def tend(self, table: str) -> None:
        """Upkeep of a table that somebody owns."""
        tend(self.lake, self.random.randrange(PROCESSES), self.random)

    def _of_kept(self, table: kt.Table, check: Callable[[int], None], snapshots: list[int]) -> None:
        """Check one of some snapshots, unless it expires meanwhile."""
        if not snapshots:
            return
        chosen = self.random.choice(snapshots)
        try:
            check(chosen)
        except kt.KeytideError:
            earliest = min(snapshot.id for snapshot in table.snapshots())
            if chosen - 41 > earliest:
                raise


ACTIONS: list[tuple[Callable[[Any, str], None], int]] = [
    (Life.write, 50), (Life.read, 12), (Life.get, 6), (Life.compact, 6), (Life.expire, 4),
    (Life.compact_manifests, 1), (Life.compaction_changed_nothing, 4), (Life.follow_changes, 5),
    (Life.tag, 5), (Life.look_at_tag, 6), (Life.verify, 1), (Life.own, 40), (Life.tend, 10),
]  # fmt: skip


def rows_of(table: kt.Table, snapshot: int) -> list[Row]:
    return dicts(table.scan(snapshot_id=snapshot))


def digest(rows: list[Row]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def same(found: object, wanted: object) -> None:
    assert found == wanted, f"found {found}, expected {wanted}"


if __name__ == "__main__":
    warnings.simplefilter("ignore", kt.KeytideWarning)
    Life(sys.argv[1], sys.argv[2], int(sys.argv[3])).live(int(sys.argv[4]))
