"""A table whose rows one process alone changes, while others compact it, expire its snapshots and
clean up: it is restored, rolled back, tagged and branched, and shows what it showed.

What is begun stands in the journal before, with the rows that it leads to, so that a process that
is begun anew can finish what a dead one was at.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keytide as kt
from new_tables import fields_of

__all__ = ["Owned", "make_owned", "tend"]

_SHAPES: list[tuple[list[str], list[str], dict[str, str]]] = [
    (["k"], ["p"], {"bucket": "-1", "dynamic-bucket.target-row-num": "3"}),
    (["p", "k"], ["p"], {"bucket": "2", "num-sorted-run.compaction-trigger": "3"}),
    (["k"], [], {"deletion-vectors.enabled": "true", "num-sorted-run.compaction-trigger": "2"}),
]
_COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "v": "BIGINT"}
_KEPT_SNAPSHOTS = 40

Rows = dict[str, Any]
"""What a table shows: rows by the text of their key."""


def make_owned(lake: kt.Lake, processes: int) -> None:
    """A table for each process."""
    fields = fields_of(_COLUMNS)
    for number in range(processes):
        key, partition, options = _SHAPES[number % len(_SHAPES)]
        lake.create_table(f"own_{number}", fields, key, partition, options=options)


def tend(lake: kt.Lake, number: int, chance: random.Random) -> None:
    """What anybody may do to such a table: no row of it becomes another one."""
    table = lake.table(f"own_{number}")
    act = chance.choice(["compact", "compact", "manifests", "expire", "clean"])
    # A branch goes, or a rollback takes away what is looked at: then there was nothing to do.
    with suppress(kt.ConflictError, kt.NotFoundError):
        if act == "compact":
            table.compact(full=chance.random() < 0.5)
        elif act == "manifests":
            lake.sql(f"CALL sys.compact_manifest('own_{number}')")
        elif act == "expire":
            table.expire_snapshots(_KEPT_SNAPSHOTS + 5, _KEPT_SNAPSHOTS, max_deletes=10)
        else:
            table.remove_orphan_files(dry_run=False)


class Owned:
    """The table of one process, what it shows, and what its snapshots and tags did."""

    def __init__(self, lake: kt.Lake, number: int, journal: Path) -> None:
        self.table, self.journal = lake.table(f"own_{number}"), journal
        self.key, self.partition, _ = _SHAPES[number % len(_SHAPES)]
        self.name = f"owner-{number}"
        self.now: Rows = {}
        self.then: dict[str, Rows] = {}
        self.tags: dict[str, Rows] = {}
        self.count = 0
        asked: dict[str, Any] | None = None
        for line in journal.read_text().splitlines() if journal.exists() else []:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn by a kill, and then nothing was begun
            self.count = max(self.count, entry.get("count", 0))
            if entry["is"] == "asked":
                asked = entry
            else:
                asked = None
                self.now, self.tags = entry["now"], entry["tags"]
                self.then[entry["uuid"]] = entry["now"]
        if asked is not None:
            self._finish(asked)

    def step(self, chance: random.Random) -> None:
        """One change, or one look."""
        acts: list[Callable[[random.Random], None]] = [
            self.write, self.write, self.write, self.write, self.restore, self.restore,
            self.roll_back, self.tag, self.untag, self.branch, self.look, self.look, self.look,
        ]  # fmt: skip
        act = chance.choice(acts)
        try:
            act(chance)
        except Exception as error:
            error.add_note(f"{self.name}: {act.__name__}, change {self.count}")
            raise

    # -- changes ---------------------------------------------------------------------------------

    def write(self, chance: random.Random) -> None:
        """Some rows."""
        rows = self._rows(chance)
        self._begin("write", self._with(self.now, rows), rows=rows)

    def restore(self, chance: random.Random) -> None:
        """The table, or one partition, as a snapshot showed it."""
        picked = self._picked(chance)
        if picked is None:
            return
        number, uuid, then = picked
        part = chance.choice(["a", "b", None]) if self.key == ["p", "k"] else None
        now = {k: row for k, row in self.now.items() if part is not None and row["p"] != part}
        now |= {k: row for k, row in then.items() if part is None or row["p"] == part}
        self._begin("restore", now, number=number, uuid=uuid, part=part)

    def roll_back(self, chance: random.Random) -> None:
        """The table as a snapshot showed it, and all that came later is gone."""
        picked = self._picked(chance)
        if picked is not None:
            number, uuid, then = picked
            self._begin("rollback", then, number=number, uuid=uuid)

    def branch(self, chance: random.Random) -> None:
        """A branch that becomes the table."""
        rows = self._rows(chance)
        self._begin("branch", self._with(self.now, rows), rows=rows)

    def tag(self, chance: random.Random) -> None:
        """A name for a snapshot."""
        picked = self._picked(chance)
        if picked is None:
            return
        self.count += 1
        with suppress(kt.NotFoundError, kt.ConflictError):  # it expired meanwhile
            self.table.create_tag(f"own{self.count}", picked[0])
            self.tags[f"own{self.count}"] = picked[2]
        self._note()

    def untag(self, chance: random.Random) -> None:
        """One name less."""
        if self.tags:
            name = chance.choice(sorted(self.tags))
            self.count += 1
            del self.tags[name]
            self._note()
            self.table.delete_tag(name)

    # -- looks -----------------------------------------------------------------------------------

    def look(self, chance: random.Random) -> None:
        """The table shows what it has to, and so do a snapshot and a tag."""
        self._same(self.table.scan(), self.now, "the table")
        if self.tags:
            name = chance.choice(sorted(self.tags))
            self._same(self.table.scan(tag=name), self.tags[name], f"tag {name}")
        picked = self._picked(chance)
        if picked is not None:
            with suppress(kt.NotFoundError):  # it expired meanwhile
                scan = self.table.scan(snapshot_id=picked[0])
                self._same(scan, picked[2], f"snapshot {picked[0]}")

    def _same(self, scan: kt.Scan, wanted: Rows, what: str) -> None:
        found = self._shown(scan)
        assert found == wanted, (
            f"{what} of {self.name} shows {found}, expected {wanted}; {self._told()}"
        )

    def _told(self) -> str:
        """The snapshots and tags there are, for whoever has to find out why."""
        then = self.then
        tags = [f"{tag.name} -> {tag.snapshot.id} {tag.snapshot.uuid}" for tag in self.table.tags()]
        snapshots = [
            f"{s.id} {s.commit_kind.value} {s.uuid} {s.commit_user}{', known' * (s.uuid in then)}"
            for s in self.table.snapshots()
        ]
        return "\n".join(["tags", *tags, "snapshots", *snapshots])

    # -- the journal -----------------------------------------------------------------------------

    def _begin(self, act: str, after: Rows, **given: Any) -> None:
        self.count += 1
        entry = {"is": "asked", "act": act, "count": self.count, "after": after, **given}
        with self.journal.open("a") as file:
            file.write(f"\n{json.dumps(entry)}")
        self._finish(entry)

    def _finish(self, entry: dict[str, Any]) -> None:
        """Do what was asked for, perhaps for the second time."""
        is_done = getattr(self, f"_{entry['act']}")(entry)
        if is_done:
            self.now = entry["after"]
        self._note()

    def _note(self) -> None:
        """What the table shows by now, in the journal."""
        snapshots = self.table.snapshots()
        uuid = snapshots[-1].uuid if snapshots else None
        if uuid is not None:
            self.then[uuid] = self.now
        entry = {"is": "done", "count": self.count, "now": self.now, "tags": self.tags}
        with self.journal.open("a") as file:
            file.write(f"\n{json.dumps({**entry, 'uuid': uuid})}")

    def _write(self, entry: dict[str, Any]) -> bool:
        # Made again under the same identity it changes nothing.
        self.table.write(entry["rows"], commit_user=self.name, commit_identifier=entry["count"])
        return True

    def _restore(self, entry: dict[str, Any]) -> bool:
        if not self._is_there(entry):
            return self._shown(self.table.scan()) == entry["after"]
        part = None if entry["part"] is None else {"p": entry["part"]}
        try:
            self.table.restore(entry["number"], part)
        except (kt.NotFoundError, kt.ConflictError):
            return self._shown(self.table.scan()) == entry["after"]
        return True

    def _rollback(self, entry: dict[str, Any]) -> bool:
        if not self._is_there(entry):
            return self._shown(self.table.scan()) == entry["after"]
        try:
            self.table.rollback_to(entry["number"])
        except (kt.NotFoundError, kt.ConflictError):
            return self._shown(self.table.scan()) == entry["after"]
        names = {tag.name for tag in self.table.tags()}
        self.tags = {name: rows for name, rows in self.tags.items() if name in names}
        return True

    def _branch(self, entry: dict[str, Any]) -> bool:
        name = f"b{entry['count']}"
        there = {branch.name for branch in self.table.branches()}
        is_done = self._shown(self.table.scan()) == entry["after"]
        if not is_done:
            if name not in there:
                self.table.create_branch(name)
            branch = self.table.branch(name)
            branch.write(entry["rows"], commit_user=self.name, commit_identifier=entry["count"])
            try:
                self.table.fast_forward(name, discard=True)
                is_done = True
            except kt.ConflictError:
                pass  # others have compacted the table meanwhile, so it goes on by itself
        with suppress(kt.NotFoundError):
            self.table.delete_branch(name)
        return is_done

    def _is_there(self, entry: dict[str, Any]) -> bool:
        return any(
            snapshot.id == entry["number"] and snapshot.uuid == entry["uuid"]
            for snapshot in self.table.snapshots()
        )

    # -- rows ------------------------------------------------------------------------------------

    def _rows(self, chance: random.Random) -> list[dict[str, Any]]:
        rows = {}
        for k in chance.sample(range(6), chance.randint(1, 4)):
            row = {"p": chance.choice("ab"), "k": k, "v": self.count,
                   "_row_kind": chance.choice(["+I", "+I", "-D"])}  # fmt: skip
            # A delete says where its row is.
            if row["_row_kind"] == "-D" and self.key == ["k"] and str([k]) in self.now:
                row["p"] = self.now[str([k])]["p"]
            rows[k] = row
        return list(rows.values())

    def _with(self, before: Rows, rows: list[dict[str, Any]]) -> Rows:
        after = dict(before)
        for row in rows:
            key = self._key_of(row)
            after.pop(key, None)
            if row["_row_kind"] != "-D":
                after[key] = {name: row[name] for name in _COLUMNS}
        return after

    def _key_of(self, row: dict[str, Any]) -> str:
        return str([row[name] for name in self.key])

    def _shown(self, scan: kt.Scan) -> Rows:
        rows = scan.to_pylist()
        assert len({self._key_of(row) for row in rows}) == len(rows), f"a key twice: {rows}"
        return {self._key_of(row): row for row in rows}

    def _picked(self, chance: random.Random) -> tuple[int, str, Rows] | None:
        """A snapshot of which is known what it shows; none of those that are about to expire."""
        known = [
            (snapshot.id, snapshot.uuid, self.then[snapshot.uuid])
            for snapshot in self.table.snapshots()[-_KEPT_SNAPSHOTS // 2 :]
            if snapshot.uuid in self.then
        ]
        return chance.choice(known) if known else None
