"""The client of a catalog service: requests, responses, credentials, and table names.

The protocol is Apache Paimon's: JSON over HTTP below `/v1`. The service's configuration contains
the path prefix of a warehouse.

The credentials for the files of a table are temporary.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from cachetools import LRUCache

from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property
from keytide.errors import ConflictError, DataError, UnsupportedError
from keytide.format import paths
from keytide.format.json_document import OBJECT, TEXT, TEXTS, optional_member
from keytide.format.paths import branch_of, branched_name
from keytide.store import Store

# -- requests and responses ------------------------------------------------------------------------


MISSING = 404
TAKEN = 409
_TIMEOUT_S = 60
_PAGE = 1000
# A restarting service answers again soon, and read requests can be repeated safely.
_TRIES = 3
_WAIT_S = 0.2
_UNKNOWN = 501
_BUSY = frozenset({429, 502, 503, 504})


class LostAnswerError(DataError):
    """It is unknown whether the service has executed the request."""


@dataclass(frozen=True)
class Answer:
    """A response of the service: an HTTP status, and a document that can be empty."""

    status: int
    document: Mapping[str, Any]

    @property
    def is_done(self) -> bool:
        """Whether the service executed the request."""
        return self.status < 300

    @property
    def about(self) -> str:
        """The kind of object that is missing or exists, such as 'TABLE', if the service says so."""
        return str(self.document.get("resourceType") or "")

    def object(self, name: str, where: str) -> Mapping[str, Any]:
        """A member that is an object, empty if it is missing. Raises `DataError` for another."""
        found: Mapping[str, Any] = optional_member(self.document, name, OBJECT, where, {})
        return found


def options_in(described: Mapping[str, Any], table: str) -> Mapping[str, Any]:
    """The options in a description of a table. Raises `DataError` if it is no description."""
    schema = optional_member(described, "schema", OBJECT, table, {})
    found: Mapping[str, Any] = optional_member(schema, "options", OBJECT, table, {})
    return found


@dataclass(frozen=True)
class RestClient:
    """A client for one warehouse of a service. Can be pickled, and shared between threads.

    Methods raise `DataError`, which says how to fix it, if the service cannot be reached, refuses
    the token or the request, or fails.
    """

    address: str
    warehouse: str
    token: str | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """The service and the warehouse, for messages."""
        return f"{self.address}?{urlencode({'warehouse': self.warehouse})}"

    def setting(self, name: str, own: str | None = None) -> str | None:
        """A setting of the service. `own` is the user's value, which the service can override.

        The service has defaults, and overrides that take precedence over the user's values.
        """
        defaults, overrides = self._settings
        found = overrides.get(name, defaults.get(name) if own is None else own)
        return None if found is None else str(found)

    @cached_property
    def _settings(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The service's defaults and overrides, requested once."""
        query = urlencode({"warehouse": self.warehouse})
        answer = self._read(f"/v1/config?{query}")
        where = f"the configuration at {self.address}"
        return answer.object("defaults", where), answer.object("overrides", where)

    def get(self, *path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read something, and retry if the service is busy. The object may not exist."""
        asked = f"?{urlencode(query)}" if query else ""
        return self._read(f"{self._path(path)}{asked}", accepted=(MISSING,))

    def names(self, member: str, *path: str) -> list[str]:
        """All names in a paged list, empty if its parent does not exist.

        Raises `DataError` if its pages refer to each other in a circle.
        """
        found: list[str] = []
        seen: set[str] = set()
        query = {"maxResults": str(_PAGE)}
        while True:
            page = self.get(*path, query=query).document
            where = f"the list of {member} at {self.address}"
            found += optional_member(page, member, TEXTS, where, [])
            token = optional_member(page, "nextPageToken", TEXT, where)
            if not token or token == query.get("pageToken"):
                return found
            if token in seen:
                raise DataError(
                    f"{where}: its pages lead in a circle, the page token {token[:80]!r} came "
                    "twice; check the service"
                )
            seen.add(token)
            query["pageToken"] = token

    def post(self, *path: str, body: Mapping[str, Any]) -> Answer:
        """Create or change something, with one request. An object may be missing, or exist already.

        Raises `LostAnswerError` if the request may have been executed nevertheless.
        """
        return self._send("POST", self._path(path), body, accepted=(MISSING, TAKEN))

    def delete(self, *path: str) -> Answer:
        """Remove something, which may not exist. Raises as `post`."""
        return self._send("DELETE", self._path(path), None, accepted=(MISSING,))

    def _path(self, parts: tuple[str, ...]) -> str:
        prefix = (self.setting("prefix") or "").strip("/")
        base = f"/v1/{prefix}" if prefix else "/v1"
        return "/".join([base, *(quote(part, safe="") for part in parts)])

    def _read(self, path: str, accepted: tuple[int, ...] = ()) -> Answer:
        for _ in range(_TRIES - 1):
            with suppress(LostAnswerError):
                return self._send("GET", path, None, accepted)
            time.sleep(_WAIT_S)
        return self._send("GET", path, None, accepted)

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, accepted: tuple[int, ...]
    ) -> Answer:
        request = urllib.request.Request(f"{self.address}{path}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self.token is not None:
            # A redirect target must not receive the token.
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answered:
                return Answer(answered.status, _document(answered.read()))
        except urllib.error.HTTPError as error:
            with error:
                return self._error_answer(method, path, error, accepted)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise LostAnswerError(
                f"{method} {self.address}{path}: the catalog did not respond ({reason}); check "
                "the address and that the service is running"
            ) from error

    def _error_answer(
        self, method: str, path: str, error: urllib.error.HTTPError, accepted: tuple[int, ...]
    ) -> Answer:
        """The response for an error status. Raises unless the caller expects that status."""
        try:
            answer = Answer(error.code, _document(error.read()))
        except (OSError, http.client.HTTPException, ValueError):
            answer = Answer(error.code, {})
        if answer.status in accepted:
            return answer
        said = answer.document.get("message") or error.reason
        text = f"{method} {self.address}{path}: the catalog responded with {error.code} ({said})"
        if error.code == _UNKNOWN:
            raise UnsupportedError(
                f"{text}; it does not support this operation, so use another engine"
            )
        if error.code in _BUSY or error.code >= 500:
            raise LostAnswerError(f"{text}; try again, and check the log of the service")
        raise DataError(f"{text}; {_WAYS_OUT.get(error.code, _WAY_OUT)}")


_WAY_OUT = "check the address, the warehouse and the name"
_WAYS_OUT = {
    401: "set a valid token in the option 'token' or in KEYTIDE_REST_TOKEN",
    403: "ask the administrator of the catalog for this permission, or use another token",
    404: "check the address and the name of the warehouse",
}


def _document(data: bytes) -> Mapping[str, Any]:
    """The JSON object of a response, empty if there is none. Raises `ValueError` for other JSON."""
    if not data.strip():
        return {}
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("its response is nested too deeply") from error
    if not isinstance(found, dict):
        # Services sometimes answer changes with plain text.
        return {}
    return found


# -- temporary credentials for the files of a table ------------------------------------------------


if TYPE_CHECKING:
    from obstore.store import S3Credential


LENDS = "data-token.enabled"
"""The setting with which catalogs provide credentials."""

# obstore requests new credentials in the last five minutes, and must get different ones then.
_SAFETY_MS = 600_000
_TABLES_MAX = 4096
# The option names of Paimon's own S3 file systems.
_NAMES = {
    "access_key_id": ("fs.s3.accessKeyId", "s3.access-key", "s3.access.key", "fs.s3a.access.key"),
    "secret_access_key": (
        "fs.s3.accessKeySecret", "s3.secret-key", "s3.secret.key", "fs.s3a.secret.key",
    ),
    "session_token": (
        "fs.s3.securityToken", "s3.session-token", "s3.session.token", "fs.s3a.session.token",
    ),
    "endpoint": ("fs.s3.endpoint", "s3.endpoint", "fs.s3a.endpoint"),
    "region": ("fs.s3.region", "s3.region", "fs.s3a.endpoint.region"),
}  # fmt: skip


@dataclass(frozen=True)
class _Credentials:
    """Options of a store, and when they expire, None for never."""

    options: dict[str, str]
    ends_ms: int | None


@dataclass(frozen=True)
class TableToken:
    """Requests the credentials of a table from the catalog. A `Lender`.

    The whole process uses the last credentials until shortly before they expire.
    """

    client: RestClient
    database: str
    table: str

    def options(self) -> dict[str, str]:
        """Other options of the store from the catalog: endpoint and region. Raises as a call."""
        known = self._credentials().options
        return {name: known[name] for name in ("endpoint", "region") if name in known}

    def __call__(self) -> S3Credential:
        """The current credentials.

        Raises `DataError` if the catalog provides none, and `UnsupportedError` for those of a store
        other than S3.
        """
        lent = self._credentials()
        ends = None
        if lent.ends_ms is not None:
            ends = datetime.fromtimestamp(lent.ends_ms / 1000, timezone.utc)
        return {
            "access_key_id": lent.options["access_key_id"],
            "secret_access_key": lent.options["secret_access_key"],
            "token": lent.options.get("session_token"),
            "expires_at": ends,
        }

    def _credentials(self) -> _Credentials:
        with _LOCK:
            known = _KNOWN.get(self)
        ends_ms = None if known is None else known.ends_ms
        if known is not None and (ends_ms is None or ends_ms - time.time() * 1000 > _SAFETY_MS):
            return known
        path = ("databases", self.database, "tables", self.table, "token")
        answer, where = self.client.get(*path), f"table {self.database}.{self.table}"
        token = answer.document.get("token")
        if not answer.is_done or not isinstance(token, dict):
            raise DataError(
                f"{where}: {self.client.uri} issues no credentials for it "
                f"({answer.document.get('message') or answer.status}); check the catalog"
            )
        options = {
            name: str(token[theirs])
            for name, known in _NAMES.items()
            for theirs in known
            if theirs in token
        }
        if not options.keys() >= {"access_key_id", "secret_access_key"}:
            raise UnsupportedError(
                f"{where}: {self.client.uri} issues {', '.join(sorted(token)) or 'nothing'}, but "
                f"this release supports only S3 credentials; connect with '{LENDS}' = 'false' "
                "and your own credentials, if the catalog allows it"
            )
        ends_ms = answer.document.get("expiresAtMillis")
        lent = _Credentials(options, ends_ms if isinstance(ends_ms, int) else None)
        with _LOCK:
            _KNOWN[self] = lent
        return lent


_KNOWN: LRUCache[TableToken, _Credentials] = LRUCache(_TABLES_MAX)
_LOCK = Lock()


# -- the table of a request ------------------------------------------------------------------------


@dataclass(frozen=True)
class RestTable:
    """A table, by its names and its id, which distinguishes it from a recreated table.

    A branch has the table's name followed by its own. `store` says which one is meant.
    """

    client: RestClient
    database: str
    name: str
    id: str

    def __str__(self) -> str:
        return f"table {self.database}.{self.name}"

    def get(self, store: Store, *rest: str) -> Answer:
        """Read something about the table, which may not exist. Raises as `RestClient.get`."""
        return self.client.get(*self._path(store), *rest)

    def post(self, store: Store, *rest: str, body: Mapping[str, Any]) -> Answer:
        """Change something about the table. Raises as `RestClient.post`."""
        return self.client.post(*self._path(store), *rest, body=body)

    def delete(self, store: Store, *rest: str) -> Answer:
        """Remove something of the table. Raises as `RestClient.post`."""
        return self.client.delete(*self._path(store), *rest)

    def description(self, store: Store) -> Mapping[str, Any]:
        """The catalog's description of the table. Raises `ConflictError` if it was recreated.

        Requests without an id are sent after this, so that they do not affect another table.
        """
        main = self.client.get("databases", self.database, "tables", self.name)
        if not main.is_done or str(main.document.get("id")) != self.id:
            raise self.gone_error(main)
        if branch_of(store) == paths.MAIN_BRANCH:
            return main.document
        own = self.get(store)
        if not own.is_done:
            raise self.gone_error(own)
        return own.document

    def gone_error(self, answer: Answer) -> ConflictError:
        """The error if the table does not exist, or was recreated."""
        if answer.status != MISSING:
            return ConflictError(
                f"{self} of the catalog {self.client.uri} is now another table: the opened one "
                "was dropped or renamed, so nothing was changed; open the new one"
            )
        return ConflictError(
            f"{self} is no longer in the catalog {self.client.uri}: it was renamed or dropped "
            "meanwhile, so nothing was committed; open the table by its new name, and run the "
            "operation again"
        )

    def _path(self, store: Store) -> tuple[str, ...]:
        return ("databases", self.database, "tables", branched_name(self.name, branch_of(store)))
