"""A table of the test's catalog service: its files, and what requests do to them.

The rules are those of Apache Paimon's catalogs: a branch begins empty or with a tag, a rollback
takes what is later away, a fast-forward makes the table what its branch is.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

__all__ = ["BRANCH_MARK", "KeptTable", "Said", "missing", "taken"]

Said = tuple[int, dict[str, Any]]
Document = dict[str, Any]
BRANCH_MARK = "$branch_"


def missing(kind: str) -> Said:
    return 404, {"resourceType": kind, "message": "not there"}


def taken(kind: str) -> Said:
    return 409, {"resourceType": kind, "message": "taken"}


@dataclass
class KeptTable:
    """A table, or a branch of one: `id` is that of the table."""

    folder: Path
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    head: Document | None = None
    branches: dict[str, KeptTable] = field(default_factory=dict)
    partitions: dict[str, dict[str, int]] = field(default_factory=dict)
    """By the texts of a partition, counts as commits have told them."""
    is_old: bool = False
    """Whether the catalog keeps no uuids, as those before 2.0."""

    @classmethod
    def made(cls, folder: Path, schema: Document) -> KeptTable:
        table = cls(folder)
        highest = max(each["id"] for each in schema["fields"])
        stored = {"version": 3, "id": 0, "highestFieldId": highest, "timeMillis": 1_700_000_000_000}
        table.put("schema/schema-0", stored | schema)
        return table

    @property
    def schema(self) -> Document:
        return self.read(f"schema/schema-{max(self.numbers('schema'))}")

    # -- files ------------------------------------------------------------------------------------

    def read(self, path: str) -> Document:
        found: Document = json.loads((self.folder / path).read_text())
        return found

    def put(self, path: str, document: Document) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(json.dumps(document))

    def has(self, path: str) -> bool:
        return (self.folder / path).exists()

    def numbers(self, kind: str) -> list[int]:
        return sorted(int(p.name.split("-")[1]) for p in self.folder.glob(f"{kind}/{kind}-*"))

    def tags(self) -> list[str]:
        return sorted(p.name.removeprefix("tag-") for p in self.folder.glob("tag/tag-*"))

    # -- commits and rollbacks --------------------------------------------------------------------

    def commit(self, body: Document) -> Said:
        if body["tableId"] != self.id:
            return missing("TABLE")
        if body["baseSnapshotUuid"] != (None if self.head is None else self.head.get("uuid")):
            return 200, {"success": False}
        if self.has(f"snapshot/snapshot-{body['snapshot']['id']}"):
            return 200, {"success": False}
        # A catalog writes a snapshot in words of its own.
        unknown = {"operation", "uuid"} if self.is_old else {"operation"}
        head = {name: value for name, value in body["snapshot"].items() if name not in unknown}
        self.put(f"snapshot/snapshot-{head['id']}", head)
        self.head = head
        for told in body["statistics"]:
            self._count(told)
        return 200, {"success": True}

    def _count(self, told: Document) -> None:
        counts = self.partitions.setdefault(json.dumps(told["spec"]), {})
        for name in ("recordCount", "fileSizeInBytes", "fileCount"):
            counts[name] = counts.get(name, 0) + told[name]
        counts["lastFileCreationTime"] = told["lastFileCreationTime"]
        if not any(counts[name] for name in ("recordCount", "fileCount")):
            del self.partitions[json.dumps(told["spec"])]

    def roll_back(self, body: Document) -> Said:
        instant = body["instant"]
        if instant["type"] == "tag":
            return self._roll_back_to_tag(instant["tagName"])
        number = instant["snapshotId"]
        if not self.has(f"snapshot/snapshot-{number}"):
            return missing("SNAPSHOT")
        if body.get("fromSnapshot") not in (None, self.head and self.head["id"]):
            return 500, {"message": "Latest snapshot is another one"}
        self._take_away(number)
        return 200, {}

    def _roll_back_to_tag(self, name: str) -> Said:
        if not self.has(f"tag/tag-{name}"):
            return missing("TAG")
        snapshot = _snapshot_of(self.read(f"tag/tag-{name}"))
        self.put(f"snapshot/snapshot-{snapshot['id']}", snapshot)
        self._take_away(snapshot["id"])
        return 200, {}

    def _take_away(self, number: int) -> None:
        for later in self.numbers("snapshot"):
            if later > number:
                (self.folder / f"snapshot/snapshot-{later}").unlink()
        for tag in self.tags():
            if self.read(f"tag/tag-{tag}")["id"] > number:
                (self.folder / f"tag/tag-{tag}").unlink()
        self.head = self.read(f"snapshot/snapshot-{number}")

    # -- tags -------------------------------------------------------------------------------------

    def create_tag(self, body: Document) -> Said:
        name, number = body["tagName"], body["snapshotId"]
        if self.has(f"tag/tag-{name}"):
            return taken("TAG")
        if not self.has(f"snapshot/snapshot-{number}"):
            return missing("SNAPSHOT")
        tag = self.read(f"snapshot/snapshot-{number}")
        if body["timeRetained"] is not None:
            millis, unit = body["timeRetained"].split()
            now = datetime.now()
            assert unit == "ms"
            tag["tagCreateTime"] = [*now.timetuple()[:6], 0]
            tag["tagTimeRetained"] = int(millis) / 1000
        self.put(f"tag/tag-{name}", tag)
        return 200, {}

    def delete_tag(self, name: str) -> Said:
        if not self.has(f"tag/tag-{name}"):
            return missing("TAG")
        (self.folder / f"tag/tag-{name}").unlink()
        return 200, {}

    # -- branches ---------------------------------------------------------------------------------

    def create_branch(self, body: Document) -> Said:
        name, tag = body["branch"], body["fromTag"]
        if name in self.branches:
            return taken("BRANCH")
        if tag is not None and not self.has(f"tag/tag-{tag}"):
            return missing("TAG")
        branch = KeptTable(self.folder / f"branch/branch-{name}", self.id)
        for number in self.numbers("schema"):
            branch.put(f"schema/schema-{number}", self.read(f"schema/schema-{number}"))
        if tag is not None:
            branch.put(f"tag/tag-{tag}", self.read(f"tag/tag-{tag}"))
            branch._roll_back_to_tag(tag)
        self.branches[name] = branch
        return 200, {}

    def delete_branch(self, name: str) -> Said:
        if name not in self.branches:
            return missing("BRANCH")
        shutil.rmtree(self.branches.pop(name).folder)
        return 200, {}

    def rename_branch(self, name: str, body: Document) -> Said:
        if name not in self.branches:
            return missing("BRANCH")
        if body["toBranch"] in self.branches:
            return taken("BRANCH")
        branch = self.branches[body["toBranch"]] = self.branches.pop(name)
        branch.folder = branch.folder.rename(branch.folder.parent / f"branch-{body['toBranch']}")
        return 200, {}

    def fast_forward(self, name: str) -> Said:
        if name not in self.branches:
            return missing("BRANCH")
        branch = self.branches[name]
        first = min(branch.numbers("snapshot"))
        for number in self.numbers("snapshot"):
            if number >= first:
                (self.folder / f"snapshot/snapshot-{number}").unlink()
        for kind in ("schema", "snapshot", "tag"):
            shutil.copytree(branch.folder / kind, self.folder / kind, dirs_exist_ok=True)
        self.head = branch.head
        return 200, {}

    # -- schemas ----------------------------------------------------------------------------------

    def alter(self, body: Document) -> Said:
        schema = self.schema
        schema["id"] += 1
        for change in body["changes"]:
            said = _CHANGES[change["action"]](schema, change)
            if said is not None:
                return said
        self.put(f"schema/schema-{schema['id']}", schema)
        return 200, {}


def _snapshot_of(tag: Document) -> Document:
    return {name: value for name, value in tag.items() if not name.startswith("tag")}


def _set_option(schema: Document, change: Document) -> None:
    schema["options"][change["key"]] = change["value"]


def _remove_option(schema: Document, change: Document) -> None:
    schema["options"].pop(change["key"], None)


def _comment(schema: Document, change: Document) -> None:
    schema["comment"] = change["comment"]


def _add(schema: Document, change: Document) -> Said | None:
    siblings, name = _siblings(schema, change["fieldNames"])
    if any(each["name"] == name for each in siblings):
        return taken("COLUMN")
    schema["highestFieldId"] += 1
    new = {"id": schema["highestFieldId"], "name": name, "type": change["dataType"]}
    _number(new["type"], schema)
    if change["comment"] is not None:
        new["description"] = change["comment"]
    siblings.append(new)
    if change["move"] is not None:
        _place(siblings, change["move"])
    return None


def _number(type_: Any, schema: Document) -> None:
    """Give the members of a ROW ids of their own, whatever they came with."""
    if isinstance(type_, str):
        return
    for member in type_.get("fields", ()):
        schema["highestFieldId"] += 1
        member["id"] = schema["highestFieldId"]
        _number(member["type"], schema)
    for part in ("element", "key", "value"):
        _number(type_.get(part, ""), schema)


def _drop(schema: Document, change: Document) -> Said | None:
    siblings, name = _siblings(schema, change["fieldNames"])
    left = [each for each in siblings if each["name"] != name]
    if len(left) == len(siblings):
        return missing("COLUMN")
    siblings[:] = left
    return None


def _move(schema: Document, change: Document) -> None:
    _place(schema["fields"], change["move"])


def _place(siblings: list[Document], move: Document) -> None:
    (moved,) = [each for each in siblings if each["name"] == move["fieldName"]]
    siblings.remove(moved)
    names = [each["name"] for each in siblings]
    first = move["type"] == "FIRST"
    siblings.insert(0 if first else names.index(move["referenceFieldName"]) + 1, moved)


def _member(member: str, told: str) -> Callable[[Document, Document], Said | None]:
    def change(schema: Document, change: Document) -> Said | None:
        siblings, name = _siblings(schema, change["fieldNames"])
        found = [each for each in siblings if each["name"] == name]
        if not found:
            return missing("COLUMN")
        found[0][member] = change[told]
        return None

    return change


def _type(schema: Document, change: Document) -> Said | None:
    assert change["keepNullability"]
    return _member("type", "newDataType")(schema, change)


def _siblings(schema: Document, names: list[str]) -> tuple[list[Document], str]:
    siblings = schema["fields"]
    for name in names[:-1]:
        (parent,) = [each for each in siblings if each["name"] == name]
        siblings = parent["type"]["fields"]
    return siblings, names[-1]


_CHANGES: dict[str, Callable[[Document, Document], Said | None]] = {
    "setOption": _set_option,
    "removeOption": _remove_option,
    "updateComment": _comment,
    "addColumn": _add,
    "dropColumn": _drop,
    "renameColumn": _member("name", "newName"),
    "updateColumnType": _type,
    "updateColumnComment": _member("description", "newComment"),
    "updateColumnDefaultValue": _member("defaultValue", "newDefaultValue"),
    "updateColumnPosition": _move,
}
