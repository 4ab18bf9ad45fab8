"""Lives of tables: in whatever order rows were written, merged, brought back and forgotten, every
snapshot, tag and branch shows what it showed when it was made.

The oracle keeps the versions of each key, as they came, and those of every snapshot. It knows
nothing of files, levels and buckets.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import behind_writers
import pyarrow as pa
from fuzz_case import Case, Refused

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.format.snapshot import CommitKind

__all__ = ["run"]

SCHEMA = pa.schema(
    [
        ("p", pa.string()),
        ("k", pa.int64()),
        ("s", pa.int64()),
        ("v", pa.int64()),
        ("w", pa.string()),
    ]
)
Row = dict[str, Any]
Versions = dict[Any, list[Row]]

_MERGING: list[dict[str, str]] = [
    {}, {}, {"sequence.field": "s"},
    {"merge-engine": "partial-update"}, {"merge-engine": "partial-update", "sequence.field": "s"},
    {"merge-engine": "partial-update", "sequence.field": "s",
     "partial-update.remove-record-on-delete": "true"},
    {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum",
     "fields.s.aggregate-function": "max", "fields.w.aggregate-function": "last_non_null_value"},
    {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum", "sequence.field": "s",
     "fields.w.aggregate-function": "first_value"},
]  # fmt: skip
_UPKEEP: list[dict[str, str]] = [
    {}, {"num-sorted-run.compaction-trigger": "2"}, {"write-only": "true"},
    {"num-sorted-run.compaction-trigger": "3", "manifest.merge-min-count": "2"},
    {"deletion-vectors.enabled": "true"},
    {"deletion-vectors.enabled": "true", "num-sorted-run.compaction-trigger": "2"},
    {"changelog-producer": "lookup"}, {"changelog-producer": "full-compaction"},
    {"changelog-producer": "input"}, {"file-index.bloom-filter.columns": "v"},
    {"target-file-size": "1 kb", "write-only": "true"}, {"force-lookup": "true"},
]  # fmt: skip
_LAYOUTS: list[tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]] = [
    (("k",), (), {}), (("k",), (), {"bucket": "2"}), (("p", "k"), ("p",), {}),
    (("p", "k"), ("p",), {"bucket": "2"}),
    (("p", "k"), ("p",), {"bucket": "-1", "dynamic-bucket.target-row-num": "3"}),
    (("k",), ("p",), {"bucket": "-1", "dynamic-bucket.target-row-num": "3"}),
]  # fmt: skip


def run(case: Case) -> None:
    """One table, and what becomes of it."""
    chance = case.chance
    key, partition, layout = chance.choice(_LAYOUTS)
    options = behind_writers.OFTEN | chance.choice(_MERGING) | chance.choice(_UPKEEP) | layout
    lake = case.lake()
    if "p" not in partition or "p" in key:
        made = case.attempt(
            f"{options}",
            lambda: lake.create_table("t", SCHEMA, key, partition, options=options),
        )
    else:
        options = {k: v for k, v in options.items() if k not in ("sequence.field", "merge-engine")}
        options = {k: v for k, v in options.items() if not k.startswith(("fields.", "partial-"))}
        made = case.attempt(
            f"{options}",
            lambda: lake.create_table("t", SCHEMA, key, partition, options=options),
        )
    if isinstance(made, Refused):
        return
    life = Life(case, made, key, partition, options)
    for _ in range(chance.choice([8, 14, 22])):
        if not life.step():
            return
    found = case.attempt("verify", made.verify)
    if not isinstance(found, Refused) and found.findings:
        case.note("rows", "verify", f"{life.told}: {found}")


@dataclass
class Life:
    """A table, what it has to show, and what its snapshots had to."""

    case: Case
    table: kt.Table
    key: tuple[str, ...]
    partition: tuple[str, ...]
    options: Mapping[str, str]
    now: Versions = field(default_factory=dict)
    then: dict[str | None, Versions] = field(default_factory=dict)
    tags: dict[str, Versions] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    names: int = 0

    @property
    def told(self) -> str:
        """What was done."""
        return f"{self.key} by {self.partition}, {dict(self.options)}: {'; '.join(self.steps)}"

    def step(self) -> bool:
        """Do something and look; false where nothing more can be told of the table."""
        acts: list[Callable[[], None]] = [
            *[self.write] * 8, *[self.compact] * 4, *[self.restore] * 3, self.overwrite,
            self.change, self.roll_back, self.tag, self.untag, self.branch, self.expire, self.clean,
            self.rescale, self.convert, self.index, self.merge_manifests, self.reopen,
        ]  # fmt: skip
        found = len(self.case.findings)
        act = self.case.chance.choice(acts)
        done = self.case.attempt(f"{act.__name__} after {self.told}", act)
        if not isinstance(done, Refused):
            self.note()
            self.check()
        elif "new bucket num" in str(done.error):
            # What came back was laid out otherwise, and the error says what to do.
            self.case.attempt(f"rescale after {self.told}", self.table.rescale)
            self.note()
        elif "cannot be altered" in str(done.error):
            # It was rolled back behind a conversion, and the error says what to do.
            self.case.attempt(f"convert after {self.told}", self.settle)
            self.note()
        elif not isinstance(done.error, kt.UnsupportedError):
            self.case.note("rows", "refused", f"{self.told}, {act.__name__}: {done.error}")
        return len(self.case.findings) == found

    # -- the oracle ----------------------------------------------------------------------------

    def learn(self, versions: Versions, rows: list[Row]) -> None:
        """What comes next."""
        for row in rows:
            key = tuple(row[name] for name in self.key)
            versions.setdefault(key, []).append(row)

    def shown(self, versions: Versions) -> list[str]:
        """The rows that versions make."""
        rows = (self.merged(each) for each in versions.values())
        return sorted(repr(row) for row in rows if row is not None)

    def merged(self, versions: list[Row]) -> Row | None:
        """One row, from versions in order of arrival."""
        engine = self.options.get("merge-engine", "deduplicate")
        if "sequence.field" in self.options:
            versions = sorted(versions, key=lambda row: (row["s"] is not None, row["s"] or 0))
        gone = [place for place, row in enumerate(versions) if row["_row_kind"] == "-D"]
        alive = versions[gone[-1] + 1 :] if gone else versions
        if not alive:
            return None
        if engine == "deduplicate":
            row = alive[-1]
        elif engine == "partial-update":
            row = {name: _last(alive, name) for name in SCHEMA.names}
            if "sequence.field" in self.options:
                row["s"] = alive[-1]["s"]
        else:
            values = [each["v"] for each in alive if each["v"] is not None]
            orders = [each["s"] for each in alive if each["s"] is not None]
            is_first = self.options["fields.w.aggregate-function"] == "first_value"
            row = {
                **alive[-1],
                "v": sum(values) if values else None,
                "s": alive[-1]["s"] if is_first else max(orders, default=None),
                "w": alive[0]["w"] if is_first else _last(alive, "w"),
            }
        return {name: row[name] for name in SCHEMA.names}

    def note(self) -> None:
        """Keep what new snapshots have to show."""
        self.note_of(self.table, self.now)

    def note_of(self, table: kt.Table, now: Versions) -> None:
        """The same of a table or a branch of it."""
        snapshots = table.snapshots()
        # With deletion vectors rows are seen once they are compacted, a snapshot later.
        hides = "deletion-vectors.enabled" in self.options
        before = now if hides else None
        for snapshot in snapshots[-1:] if hides else snapshots:
            # One that ran behind a writer has come some time after what it compacted.
            is_compaction = snapshot.commit_kind is CommitKind.COMPACT
            before = self.then.get(snapshot.uuid, before if is_compaction else now)
            if before is not None:
                self.then[snapshot.uuid] = copy.deepcopy(before)

    # -- what is done --------------------------------------------------------------------------

    def rows(self, deletes: bool = True) -> list[Row]:
        """Rows to write."""
        chance = self.case.chance
        takes = self.options.get("merge-engine", "deduplicate") == "deduplicate"
        takes |= "partial-update.remove-record-on-delete" in self.options
        kinds = ["+I", "+I", "+U", "-D"] if takes and deletes else ["+I"]
        rows = [
            {"p": chance.choice("ab"), "k": chance.randrange(5),
             "s": chance.choice([None, *range(9)]), "v": chance.choice([None, *range(9)]),
             "w": chance.choice([None, "x", "y"]), "_row_kind": chance.choice(kinds)}
            for _ in range(chance.choice([1, 2, 4, 9]))
        ]  # fmt: skip
        if "p" in self.partition and "p" not in self.key:
            rows = list({row["k"]: row for row in rows}.values())
            for row in rows:
                # A delete says where the row is.
                if row["_row_kind"] == "-D" and (row["k"],) in self.now:
                    row["p"] = self.now[row["k"],][-1]["p"]
        return rows

    def write(self) -> None:
        """A write."""
        rows = self.rows()
        self.steps.append(f"write {[tuple(row.values()) for row in rows]}")
        self.table.write(rows)
        self.learn(self.now, rows)

    def overwrite(self) -> None:
        """An overwrite of the table, or of a partition."""
        rows, chosen = self.rows(deletes=False), self.case.chance.choice("ab")
        whole = "p" not in self.key or self.case.often(0.5)
        rows = rows if whole else [row | {"p": chosen} for row in rows]
        if whole and self.partition:
            spec = None
            gone = {row["p"] for row in rows}
            if "p" not in self.key:
                return
        else:
            spec, gone = (None, {"a", "b"}) if not self.partition else ({"p": chosen}, {chosen})
        self.steps.append(f"overwrite {spec} {[tuple(row.values()) for row in rows]}")
        self.table.overwrite(rows, spec)
        self.now = {k: each for k, each in self.now.items() if not self._lies_in(each, gone)}
        self.learn(self.now, rows)

    def _lies_in(self, versions: list[Row], partitions: set[str]) -> bool:
        return not self.partition or versions[-1]["p"] in partitions

    def change(self) -> None:
        """A DELETE or an UPDATE."""
        if self.options.get("merge-engine", "deduplicate") != "deduplicate":
            return
        k = self.case.chance.randrange(5)
        rows = [row for each in self.now.values() if (row := self.merged(each)) and row["k"] == k]
        if self.case.often(0.5):
            self.steps.append(f"delete k = {k}")
            self.table.delete(f"k = {k}")
            self.learn(self.now, [{**row, "_row_kind": "-D"} for row in rows])
        else:
            self.steps.append(f"update k = {k}")
            self.table.update({"v": "77"}, f"k = {k}")
            self.learn(self.now, [{**row, "v": 77, "_row_kind": "+U"} for row in rows])

    def compact(self) -> None:
        """A compaction."""
        full = self.case.often(0.6)
        self.steps.append(f"compact {full}")
        self.table.compact(full=full)

    def _picked(self) -> tuple[Any, Versions] | None:
        known = [
            (each.id, self.then[each.uuid])
            for each in self.table.snapshots() if each.uuid in self.then
        ]  # fmt: skip
        known += list(self.tags.items()) if self.case.often(0.3) else []
        return self.case.chance.choice(known) if known else None

    def restore(self) -> None:
        """A restore of a snapshot or tag, whole or of a partition."""
        picked = self._picked()
        if picked is None:
            return
        to, then = picked
        part = {"p": self.case.chance.choice("ab")} if "p" in self.key and self.partition else None
        part = part if self.case.often(0.5) else None
        self.steps.append(f"restore {to} {part}")
        self.table.restore(to, part)
        gone = {"a", "b"} if part is None else {part["p"]}
        left = {k: v for k, v in self.now.items() if part and not self._lies_in(v, gone)}
        back = {k: v for k, v in then.items() if self._lies_in(v, gone)}
        self.now = copy.deepcopy(left | back)

    def roll_back(self) -> None:
        """A rollback to a snapshot."""
        known = [each for each in self.table.snapshots() if each.uuid in self.then]
        if not known:
            return
        chosen = self.case.chance.choice(known)
        self.steps.append(f"rollback {chosen.id}")
        self.table.rollback_to(chosen.id)
        self.now = copy.deepcopy(self.then[chosen.uuid])
        names = {tag.name for tag in self.table.tags()}
        self.tags = {name: then for name, then in self.tags.items() if name in names}

    def tag(self) -> None:
        """A tag of a snapshot."""
        known = [each for each in self.table.snapshots() if each.uuid in self.then]
        if not known:
            return
        chosen, self.names = self.case.chance.choice(known), self.names + 1
        self.steps.append(f"tag t{self.names} {chosen.id}")
        self.table.create_tag(f"t{self.names}", chosen.id)
        self.tags[f"t{self.names}"] = copy.deepcopy(self.then[chosen.uuid])

    def untag(self) -> None:
        """One tag less."""
        if self.tags:
            name = self.case.chance.choice(sorted(self.tags))
            self.steps.append(f"delete tag {name}")
            self.table.delete_tag(name)
            del self.tags[name]

    def branch(self) -> None:
        """A branch that is written to, and becomes the table or goes again."""
        if not self.table.snapshots():
            return
        self.names += 1
        name = f"b{self.names}"
        self.steps.append(f"branch {name}")
        self.table.create_branch(name)
        branch, theirs = self.table.branch(name), copy.deepcopy(self.now)
        for _ in range(self.case.chance.choice([1, 3])):
            rows = self.rows()
            self.steps.append(f"write {name} {[tuple(row.values()) for row in rows]}")
            branch.write(rows)
            self.learn(theirs, rows)
            self.note_of(branch, theirs)
            if self.case.often(0.3) and "compact" not in self.steps[-1]:
                self.case.attempt(f"compact {name}", lambda: branch.compact(full=True))
                self.note_of(branch, theirs)
        self.compare(f"branch {name}", branch.scan, theirs)
        if self.case.often(0.5):
            self.steps.append(f"fast forward {name}")
            self.table.fast_forward(name, discard=True)
            self.now = theirs
        self.steps.append(f"delete branch {name}")
        self.table.delete_branch(name)

    def expire(self) -> None:
        """Fewer snapshots."""
        most = self.case.chance.randint(1, 5)
        self.steps.append(f"expire {most}")
        self.table.expire_snapshots(most, 1)
        self.table.expire_tags()

    def clean(self) -> None:
        """No files that nobody names."""
        time.sleep(0.003)
        self.steps.append("clean")
        self.table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)

    def rescale(self) -> None:
        """Another number of buckets."""
        if int(self.options.get("bucket", "-1")) < 1:
            return
        buckets = self.case.chance.randint(1, 4)
        self.steps.append(f"rescale {buckets}")
        self.table.alter(SetOption("bucket", str(buckets)))
        self.table.rescale()

    def convert(self) -> None:
        """The other kind of table, with the same rows and deletes."""
        mode = "none" if self.table.table_schema.is_indexed else "full"
        self.steps.append(f"convert {mode}")
        self.table.convert(mode)

    def settle(self) -> None:
        """The kind that the table has, once and for all."""
        self.steps.append("settle")
        self.table.convert(self.table.table_schema.upsert_mode)

    def index(self) -> None:
        """Filters for files that lack them."""
        self.steps.append("index")
        column = self.case.chance.choice("kvw")
        self.table.alter(SetOption("file-index.bloom-filter.columns", column))
        self.table.rewrite_file_index()

    def merge_manifests(self) -> None:
        """Fewer manifests."""
        self.steps.append("manifests")
        self.case.lake().sql("CALL sys.compact_manifest('t')")

    def reopen(self) -> None:
        """Another process goes on."""
        self.steps.append("reopen")
        self.table = self.elsewhere()

    def elsewhere(self) -> kt.Table:
        """The table as a process sees it that has done nothing of this."""
        return self.case.lake().table("t")

    # -- what is looked at ---------------------------------------------------------------------

    def check(self) -> None:
        """Whether the table, a snapshot, a tag and changes show what they have to."""
        chance, table = self.case.chance, self.table
        self.compare("the table", table.scan, self.now)
        self.compare("another process", self.elsewhere().scan, self.now)
        for name, then in self.tags.items():
            self.compare(f"tag {name}", lambda name=name: table.scan(tag=name), then)
        known = [each for each in table.snapshots() if each.uuid in self.then]
        for each in chance.sample(known, min(2, len(known))):
            then = self.then[each.uuid]
            self.compare(f"snapshot {each.id}", lambda n=each.id: table.scan(snapshot_id=n), then)
        if len(known) > 1:
            first, last = sorted(chance.sample(known, 2), key=lambda each: each.id)
            self.fold(first, last)
        if self.now:
            key = chance.choice(sorted(self.now, key=repr))
            found = self.case.attempt("get", lambda: table.get(key if len(key) > 1 else key[0]))
            if not isinstance(found, Refused) and found != self.merged(self.now[key]):
                wanted = self.merged(self.now[key])
                self.case.note("rows", "get", f"{self.told}: {key} is {found}, not {wanted}")

    def compare(self, what: str, scan: Callable[[], kt.Scan], versions: Versions) -> None:
        """Whether a scan shows what versions make."""
        found = self.case.attempt(f"{what} after {self.told}", lambda: scan().to_pylist())
        if isinstance(found, Refused):
            self.case.note("rows", "scan", f"{self.told}: {what}: {found.error}")
            return
        self.case.count("looks")
        rows, wanted = sorted(map(repr, found)), self.shown(versions)
        if rows != wanted:
            more, less = set(rows) - set(wanted), set(wanted) - set(rows)
            place = what.split(" ")[0]
            self.case.note("rows", place, f"{what} has {more}, lacks {less} after {self.told}")

    def fold(self, first: Any, last: Any) -> None:
        """Whether changes lead from one snapshot to another, in the order in which they come."""
        told = f"changes {first.id} to {last.id}"
        changes = self.case.attempt(
            f"{told} after {self.told}", lambda: self.table.changes(first.id, last.id).to_pylist()
        )
        if isinstance(changes, Refused):
            return
        rows = dict.fromkeys(self.shown(self.then[first.uuid]), True)
        for change in changes:
            kind = change.pop("_row_kind")
            row = repr({name: change[name] for name in SCHEMA.names})
            if kind in ("+I", "+U"):
                rows[row] = True
            elif rows.pop(row, None) is None:
                self.case.note("rows", "changes", f"{told}: {kind} of {row}, after {self.told}")
        if sorted(rows) != self.shown(self.then[last.uuid]):
            self.case.note("rows", "changes", f"{told} lead to {sorted(rows)}, after {self.told}")


def _last(versions: list[Row], name: str) -> Any:
    values = [row[name] for row in versions if row[name] is not None]
    return values[-1] if values else None
