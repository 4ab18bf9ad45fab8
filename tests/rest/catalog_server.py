"""A catalog service in this process: Apache Paimon's REST protocol, as far as Keytide speaks it.

Tables lie in folders, and a snapshot is taken where the one that it is made on is the newest.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kept_table import BRANCH_MARK, KeptTable, Said, missing, taken

import keytide as kt

__all__ = ["TOKEN", "WAREHOUSE", "Service", "connected", "serving", "strikes"]

TOKEN = "s3cr3t"
WAREHOUSE = "lake"
PREFIX = "tenant"
_PAGE = 2


@dataclass
class Service:
    """What the service knows. `trouble` names what goes wrong with a request, if anything does."""

    folder: Path
    address: str = ""
    databases: dict[str, dict[str, KeptTable]] = field(default_factory=dict)
    options: dict[str, dict[str, str]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    insists: bool = False
    """Whether the settings hold whatever the user says."""
    place: str | None = None
    """Where all tables are said to lie, if that is not where they do."""
    token: Callable[[], dict[str, Any]] = dict
    kinds: dict[str, Any] = field(default_factory=dict)
    """What the schemas of all tables are said to have beside what they have."""
    asked: list[str] = field(default_factory=list)
    trouble: Callable[[str, str], str | None] = lambda method, path: None
    raw: Callable[[str], bytes | None] = lambda path: None
    """What it answers as bytes, instead of a document."""
    lock: Lock = field(default_factory=Lock)

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Said:
        if path == "/v1/config":
            known = query.get("warehouse") == WAREHOUSE
            return (200, self._configuration()) if known else missing("WAREHOUSE")
        parts = [unquote(part) for part in path.removeprefix(f"/v1/{PREFIX}/").split("/")]
        with self.lock:
            if parts == ["tables", "rename"]:
                return self._rename(body)
            if parts == ["databases"]:
                return self._all_databases(method, query, body)
            if parts[1] not in self.databases:
                return missing("DATABASE")
            if len(parts) == 2:
                return self._database(method, parts[1])
            return self._tables(method, parts[1], parts[3:], query, body)

    def _configuration(self) -> dict[str, Any]:
        member = "overrides" if self.insists else "defaults"
        return {"overrides": {"prefix": PREFIX}} | {member: {"prefix": PREFIX, **self.settings}}

    def _all_databases(self, method: str, query: dict[str, str], body: dict[str, Any]) -> Said:
        if method == "GET":
            return _page("databases", sorted(self.databases), query)
        if body["name"] in self.databases:
            return taken("DATABASE")
        self.databases[body["name"]] = {}
        self.options[body["name"]] = body["options"]
        return 200, {}

    def _database(self, method: str, name: str) -> Said:
        if method == "DELETE":
            del self.databases[name]
            return 200, {}
        return 200, {"name": name, "options": self.options[name]}

    def _tables(
        self, method: str, database: str, rest: list[str], query: dict[str, str], body: Any
    ) -> Said:
        tables = self.databases[database]
        if not rest:
            if method == "GET":
                return _page("tables", sorted(tables), query)
            return self._create(tables, body)
        name, _, branch = rest[0].partition(BRANCH_MARK)
        table = tables.get(name)
        if table is not None and branch:
            table = table.branches.get(branch)
        if table is None:
            return missing("TABLE")
        if not rest[1:] and method == "DELETE":
            shutil.rmtree(tables.pop(name).folder)
            return 200, {}
        if not rest[1:] and method == "GET":
            folder = self.place or tables[name].folder.as_uri()
            found = {"id": table.id, "name": rest[0], "path": folder, "isExternal": False}
            schema = table.schema
            return 200, found | {"schemaId": schema["id"], "schema": schema | self.kinds}
        if rest[1:] == ["token"]:
            return 200, self.token()
        return _of_table(table, method, rest[1:], body)

    def _create(self, tables: dict[str, KeptTable], body: dict[str, Any]) -> Said:
        name = body["identifier"]["object"]
        if name in tables:
            return taken("TABLE")
        tables[name] = KeptTable.made(self.folder / uuid.uuid4().hex, body["schema"])
        return 200, {}

    def _rename(self, body: dict[str, Any]) -> Said:
        (old, name), (new, taken) = (
            (self.databases.get(body[end]["database"]), body[end]["object"])
            for end in ("source", "destination")
        )
        if old is None or new is None or name not in old:
            return missing("TABLE")
        if taken in new:
            return taken("TABLE")
        new[taken] = old.pop(name)
        return 200, {}


def _of_table(table: KeptTable, method: str, rest: list[str], body: Any) -> Said:
    if rest == ["snapshot"]:
        return (200, {"snapshot": {"snapshot": table.head}}) if table.head else missing("SNAPSHOT")
    match [method, *rest]:
        case ["POST"]:
            return table.alter(body)
        case ["POST", "commit"]:
            return table.commit(body)
        case ["POST", "rollback"]:
            return table.roll_back(body)
        case ["POST", "tags"]:
            return table.create_tag(body)
        case ["DELETE", "tags", name]:
            return table.delete_tag(name)
        case ["POST", "branches"]:
            return table.create_branch(body)
        case ["DELETE", "branches", name]:
            return table.delete_branch(name)
        case ["POST", "branches", name, "rename"]:
            return table.rename_branch(name, body)
        case ["POST", "branches", name, "forward"]:
            return table.fast_forward(name)
    return 501, {"message": "no such service"}


def _page(member: str, names: list[str], query: dict[str, str]) -> Said:
    """A page of names, small ones, whatever was asked for: a service may give fewer."""
    left = [name for name in names if name > query.get("pageToken", "")]
    more = {"nextPageToken": left[_PAGE - 1]} if len(left) > _PAGE else {}
    return 200, {member: left[:_PAGE], **more}


class _Handler(BaseHTTPRequestHandler):
    service: Service
    wbufsize = -1  # head and document go out together

    def do_GET(self) -> None:
        self._do()

    def do_POST(self) -> None:
        self._do()

    def do_DELETE(self) -> None:
        self._do()

    def _do(self) -> None:
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.service.asked.append(f"{self.command} {parts.path}")
        trouble = self.service.trouble(self.command, parts.path)
        if trouble == "lost before":
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._say(401, {"message": "no such token"})
            return
        if trouble in ("403", "503"):
            self._say(int(trouble), {"message": "trouble"})
            return
        if raw := self.service.raw(parts.path):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(raw)
            return
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        said = self.service.answer(self.command, parts.path, query, json.loads(data or b"{}"))
        if trouble != "lost after":
            self._say(*said)

    def _say(self, status: int, document: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Service]:
    """A service at an address of this machine, as long as the block lasts."""
    service = Service(folder)
    handler = type("Handler", (_Handler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        service.address = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield service
        server.shutdown()
        thread.join()


def connected(service: Service, **options: str) -> kt.Lake:
    given = {"warehouse": WAREHOUSE, "token.provider": "bear", "token": TOKEN}
    return kt.connect(service.address, options=given | options)


def strikes(matches: Callable[[str, str], bool], *what: str) -> Callable[[str, str], str | None]:
    """Trouble with the first requests that match, one after the other."""
    left = [*what]
    return lambda method, path: left.pop(0) if left and matches(method, path) else None
