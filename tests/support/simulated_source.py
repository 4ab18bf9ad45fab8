"""A database with histories, and what each tool writes about them.

A :class:`Source` runs transactions that overlap, as a database does: each row is locked by the
first transaction that changes it until that one commits, a waiting statement has started before,
and commits are written to a log in their order. A snapshot reads committed rows while transactions
are open. ``rows`` are those that the source has at the end.

The writers of ``TOOLS`` turn the log into messages with the fields that the tool has, which were
looked up in its code or documentation (docs/feed-order.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Change:
    """One changed row. ``started`` is when its statement started, ``at`` its place in the log."""

    before: Row | None
    after: Row | None
    started: int
    at: int


@dataclass(frozen=True)
class Snapshot:
    """Committed rows that a tool read. ``at`` is the place in the log."""

    rows: tuple[Row, ...]
    at: int
    time: int


@dataclass
class Transaction:
    """An open transaction, then a committed one."""

    number: int
    changes: list[Change] = field(default_factory=list)
    committed: int = 0
    commit_time: int = 0
    log: str = ""
    server: int = 0


class Source:
    """A random history. ``stream`` has the snapshots and transactions in the order of commits."""

    def __init__(self, random: Random, length: int) -> None:
        self.rows: dict[int, Row] = {}
        self.stream: list[Transaction | Snapshot] = []
        self._random, self._clock, self._at, self._number = random, 1_000, 100, 0
        self._log, self._server = "srv-a-bin", 1
        self._open: list[Transaction] = []
        self._locks: dict[int, Transaction] = {}
        self._views: dict[int, dict[int, Row | None]] = {}
        for _ in range(random.randint(0, 4)):
            self._begin()
        self._work(random.randint(0, length))
        before = self.stream
        self.stream = []  # what precedes the snapshot is not in the stream
        del before
        self._snapshot()
        self._work(length)
        while self._open:
            self._commit(self._open[0])

    def _tick(self) -> int:
        self._clock += self._random.randint(1, 400)
        return self._clock

    def _begin(self) -> Transaction:
        self._number += 1
        made = Transaction(self._number)
        self._open.append(made)
        self._views[made.number] = {}
        return made

    def _work(self, steps: int) -> None:
        for _ in range(steps):
            if self._random.random() < 0.3 or not self._open:
                self._begin()
            transaction = self._random.choice(self._open)
            self._statement(transaction)
            if self._random.random() < 0.4:
                self._commit(self._random.choice(self._open))

    def _statement(self, transaction: Transaction) -> None:
        """A statement on one row. It waits until whoever holds the row commits."""
        started = self._tick()
        key = self._random.randint(1, 6)
        keys = [key, self._random.randint(1, 6)] if self._random.random() < 0.2 else [key]
        for each in sorted(set(keys)):
            while self._locks.get(each, transaction) is not transaction:
                self._tick()
                self._commit(self._locks[each])
        if transaction not in self._open:
            return
        for each in keys:
            self._locks[each] = transaction
        view = self._views[transaction.number]
        row = view.get(key, self.rows.get(key))
        if row is None:
            self._change(transaction, None, self._row(key), started)
        elif len(set(keys)) == 2 and view.get(keys[1], self.rows.get(keys[1])) is None:
            self._change(transaction, row, {**row, "id": keys[1]}, started)
        elif self._random.random() < 0.25:
            self._change(transaction, row, None, started)
        else:
            names = self._random.sample(["v", "big"], self._random.randint(1, 2))
            self._change(transaction, row, {**row, **{n: self._value() for n in names}}, started)

    def _row(self, key: int) -> Row:
        return {"id": key, "v": self._value(), "big": self._value()}

    def _value(self) -> str | None:
        return None if self._random.random() < 0.1 else f"x{self._random.randint(0, 10**6)}"

    def _change(
        self, transaction: Transaction, before: Row | None, after: Row | None, started: int
    ) -> None:
        self._at += self._random.randint(1, 30)
        view = self._views[transaction.number]
        if before is not None:
            view[before["id"]] = None
        if after is not None:
            view[after["id"]] = after
        transaction.changes.append(Change(before, after, started, self._at))

    def _commit(self, transaction: Transaction) -> None:
        self._open.remove(transaction)
        self._at += self._random.randint(1, 30)
        transaction.committed, transaction.commit_time = self._at, self._tick()
        transaction.log, transaction.server = self._log, self._server
        for key, row in self._views.pop(transaction.number).items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self._locks = {k: t for k, t in self._locks.items() if t is not transaction}
        if transaction.changes:
            self.stream.append(transaction)

    def _snapshot(self) -> None:
        self._at += 1
        rows = tuple(dict(row) for row in self.rows.values())
        self.stream.append(Snapshot(rows, self._at, self._tick()))


def rotated(source: Source, random: Random) -> Iterator[tuple[Any, str, int, int, int]]:
    """The parts of the stream with binlog file, position, server, and the start of the server.

    Files are renewed with time. After a failover, the log of another server goes on, whose numbers
    can be smaller.
    """
    fails_over, since, latest = random.random() < 0.5, 0, 0
    number, position, name, server = random.choice([1, 9, 99, 999_999]), 4, "srv-a-bin", 1
    middle = random.randint(1, max(1, len(source.stream) - 1))
    same_name = random.random() < 0.5
    for place, part in enumerate(source.stream):
        if random.random() < 0.2:
            number, position = number + 1, 4
        if fails_over and place == middle:
            name, server = (name if same_name else "srv-b-bin"), 2
            number, position, since = random.choice([1, number, number + 5]), 4, latest + 1
        yield part, f"{name}.{number:06d}", position, server, since
        latest = part.time if isinstance(part, Snapshot) else part.commit_time
        position += 10_000


def debezium(
    op: str, change: tuple[Row | None, Row | None], source: Row, *, omits: bool = False
) -> str:
    before, after = change
    if omits and op == "u" and before and after and before["big"] == after["big"]:
        before, after = None, {**after, "big": "__debezium_unavailable_value"}
    return json.dumps({"op": op, "before": before, "after": after, "source": source, "ts_ms": 1})


def _op(change: Change) -> str:
    if change.before is None:
        return "c"
    return "d" if change.after is None else "u"


def _split(change: Change) -> list[tuple[str, tuple[Row | None, Row | None]]]:
    """Debezium writes an update of the key as a delete and an insert."""
    if change.before and change.after and change.before["id"] != change.after["id"]:
        return [("d", (change.before, None)), ("c", (None, change.after))]
    return [(_op(change), (change.before, change.after))]


def debezium_postgres(source: Source, random: Random) -> list[str]:
    found, last = list[str](), None
    omits = random.random() < 0.5
    for part in source.stream:
        base = {"connector": "postgresql", "db": "d", "schema": "s", "table": "t"}
        if isinstance(part, Snapshot):
            told = {**base, "snapshot": "true", "lsn": part.at, "ts_ms": part.time,
                    "sequence": json.dumps([last, str(part.at)])}  # fmt: skip
            found += [debezium("r", (None, row), told) for row in part.rows]
            continue
        for change in part.changes:
            told = {**base, "snapshot": "false", "lsn": change.at, "ts_ms": part.commit_time,
                    "sequence": json.dumps([last, str(change.at)])}  # fmt: skip
            found += [debezium(op, images, told, omits=omits) for op, images in _split(change)]
        last = str(part.committed)
    return found


def debezium_mysql(source: Source, random: Random) -> list[str]:
    found = []
    for part, file, position, server, since in rotated(source, random):
        base = {"connector": "mysql", "db": "d", "table": "t", "file": file}
        if isinstance(part, Snapshot):
            told = {**base, "snapshot": "true", "pos": position, "row": 0, "server_id": 0,
                    "ts_ms": part.time}  # fmt: skip
            found += [debezium("r", (None, row), told) for row in part.rows]
            continue
        for place, change in enumerate(part.changes):
            told = {**base, "snapshot": "false", "pos": position + 10 * (place // 2 + 1),
                    "row": place % 2, "server_id": server,
                    "ts_ms": max(change.started, since)}  # fmt: skip
            found += [debezium(op, images, told) for op, images in _split(change)]
    return found


def debezium_oracle(source: Source, random: Random) -> list[str]:
    found = []
    for part in source.stream:
        base = {"connector": "oracle", "db": "d", "schema": "s", "table": "t"}
        if isinstance(part, Snapshot):
            told = {**base, "snapshot": "true", "scn": str(part.at), "commit_scn": None,
                    "ts_ms": part.time}  # fmt: skip
            found += [debezium("r", (None, row), told) for row in part.rows]
            continue
        for place, change in enumerate(part.changes):
            told = {**base, "snapshot": "false", "scn": str(change.at), "ssn": place,
                    "commit_scn": str(part.committed), "ts_ms": change.started}  # fmt: skip
            found += [debezium(op, images, told) for op, images in _split(change)]
    return found


def debezium_sqlserver(source: Source, random: Random) -> list[str]:
    def lsn(number: int) -> str:
        return f"00000027:{number:08x}:0002"

    found = []
    for part in source.stream:
        base = {"connector": "sqlserver", "db": "d", "schema": "s", "table": "t"}
        if isinstance(part, Snapshot):
            told = {**base, "snapshot": "true", "commit_lsn": lsn(part.at), "change_lsn": "NULL",
                    "event_serial_no": None, "ts_ms": part.time}  # fmt: skip
            found += [debezium("r", (None, row), told) for row in part.rows]
            continue
        for change in part.changes:
            told = {**base, "snapshot": "false", "commit_lsn": lsn(part.committed),
                    "change_lsn": lsn(change.at), "ts_ms": part.commit_time}  # fmt: skip
            for serial, (op, images) in enumerate(_split(change), start=1):
                found.append(debezium(op, images, {**told, "event_serial_no": serial}))
    return found


def maxwell(source: Source, random: Random) -> list[str]:
    found = []
    for part, file, position, server, since in rotated(source, random):
        base = {"database": "d", "table": "t"}
        if isinstance(part, Snapshot):
            told = {**base, "type": "bootstrap-insert", "ts": part.time // 1000}
            found += [json.dumps({**told, "data": row}) for row in part.rows]
            continue
        last = len(part.changes) - 1
        for place, change in enumerate(part.changes):
            started = max(change.started, since) // 1000
            told = {**base, "ts": started, "xid": part.number, "server_id": server,
                    "position": f"{file}:{position + 10 * place}",
                    **({"commit": True} if place == last else {"xoffset": place})}  # fmt: skip
            found.append(json.dumps({**told, **_maxwell_images(change)}))
    return found


def _maxwell_images(change: Change) -> Row:
    if change.before is None:
        return {"type": "insert", "data": change.after}
    if change.after is None:
        return {"type": "delete", "data": change.before}
    return {"type": "update", "data": change.after, "old": _changed(change)}


def _changed(change: Change) -> Row:
    assert change.before
    assert change.after
    return {n: v for n, v in change.before.items() if v != change.after[n]}


def canal(source: Source, random: Random) -> list[str]:
    found, made, batch = [], 1_000_000, 0
    for part in source.stream:
        if random.random() < 0.1:
            batch = 0  # the server was started again
        batch += 1
        changes: list[Any] = []
        if isinstance(part, Snapshot):
            changes = [Change(None, row, part.time, 0) for row in part.rows]
        else:
            changes = part.changes
        for change in changes:
            made += random.randint(1, 3)
            images = _maxwell_images(change)
            told = {"database": "d", "table": "t", "isDdl": False, "es": change.started,
                    "ts": made, "id": batch, "type": images["type"].upper(),
                    "data": [images["data"]], "old": [images["old"]] if "old" in images else None,
                    "pkNames": ["id"]}  # fmt: skip
            found.append(json.dumps(told))
    return found


def dms(source: Source, random: Random) -> list[str]:
    """A full load with cached changes: the rows of the load are stamped after some of them."""
    found = []
    for part in source.stream:
        base: Row = {"record-type": "data", "schema-name": "s", "table-name": "t"}
        if isinstance(part, Snapshot):
            told = {**base, "timestamp": _stamp(part.time + 5_000), "operation": "load"}
            found += [json.dumps({"data": row, "metadata": told}) for row in part.rows]
            continue
        for place, change in enumerate(part.changes, start=1):
            told = {**base, "timestamp": _stamp(part.commit_time), "transaction-id": part.number,
                    "transaction-record-id": place, "operation": _DMS[_op(change)]}  # fmt: skip
            line: Row = {"data": change.after or change.before, "metadata": told}
            if change.before and change.after:
                line["before-image"] = _changed(change)
            found.append(json.dumps(line))
    return found


def dms_files(source: Source, random: Random) -> list[str]:
    """Flat rows: those of the load have no operation."""
    found, sequence = [], 0
    for part in source.stream:
        if isinstance(part, Snapshot):
            found += [json.dumps(row) for row in part.rows]
            continue
        for change in part.changes:
            for op, (before, after) in _split(change):
                sequence += 1
                told = {"Op": {"c": "I", "u": "U", "d": "D"}[op],
                        "AR_H_CHANGE_SEQ": f"2026010100000000{sequence:019d}"}  # fmt: skip
                found.append(json.dumps({**told, **(after or before or {})}))
    return found


_DMS = {"c": "insert", "u": "update", "d": "delete"}


def _stamp(millis: int) -> str:
    moment = START + timedelta(milliseconds=millis)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


TOOLS: dict[str, tuple[str, Callable[[Source, Random], list[str]]]] = {
    "Debezium, PostgreSQL": ("debezium-json", debezium_postgres),
    "Debezium, MySQL": ("debezium-json", debezium_mysql),
    "Debezium, Oracle": ("debezium-json", debezium_oracle),
    "Debezium, SQL Server": ("debezium-json", debezium_sqlserver),
    "Maxwell, MySQL": ("maxwell-json", maxwell),
    "Canal, MySQL": ("canal-json", canal),
    "DMS, Kafka": ("dms-json", dms),
    "DMS, files": ("dms-json", dms_files),
}
