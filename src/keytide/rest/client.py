"""Requests to a catalog service, and what its answers mean.

The protocol is Apache Paimon's: JSON over HTTP below `/v1`. The service tells by its configuration
which prefix the paths of a warehouse have.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from keytide.errors import DataError, UnsupportedError
from keytide.lazily import cached_property

__all__ = ["MISSING", "TAKEN", "Answer", "LostAnswerError", "RestClient"]

MISSING = 404
TAKEN = 409
_TIMEOUT_S = 60
_PAGE = 1000
# A service that is restarted answers soon again; whoever only asks may ask anew.
_TRIES = 3
_WAIT_S = 0.2
_UNKNOWN = 501
_BUSY = frozenset({429, 502, 503, 504})


class LostAnswerError(DataError):
    """Nobody can tell whether the service has done what it was asked to do."""


@dataclass(frozen=True)
class Answer:
    """What the service said: a status of HTTP, and a document that may be empty."""

    status: int
    document: Mapping[str, Any]

    @property
    def is_done(self) -> bool:
        """Whether the service did it, and has not answered that something is not so."""
        return self.status < 300

    @property
    def about(self) -> str:
        """The kind of what is missing or taken, such as 'TABLE', where the service says so."""
        return str(self.document.get("resourceType") or "")


@dataclass(frozen=True)
class RestClient:
    """Asks one service about one of its warehouses. Pickles, and may be shared between threads.

    Methods raise `DataError`, which names what to do, where the service cannot be reached, refuses
    the token or the request, or fails.
    """

    address: str
    warehouse: str
    token: str | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """The service and the warehouse, as people write them."""
        return f"{self.address}?{urlencode({'warehouse': self.warehouse})}"

    def setting(self, name: str, own: str | None = None) -> str | None:
        """A setting of the service; `own` is what the user says, which may not be for him to say.

        The service has defaults, and others that hold whatever the user says.
        """
        defaults, overrides = self._settings
        found = overrides.get(name, defaults.get(name) if own is None else own)
        return None if found is None else str(found)

    @cached_property
    def _settings(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Defaults and overrides of the service; asked once."""
        query = urlencode({"warehouse": self.warehouse})
        answer = self._asked("GET", f"/v1/config?{query}").document
        return answer.get("defaults") or {}, answer.get("overrides") or {}

    @cached_property
    def _base(self) -> str:
        """What the paths of the warehouse begin with."""
        prefix = (self.setting("prefix") or "").strip("/")
        return f"/v1/{prefix}" if prefix else "/v1"

    def get(self, *path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Ask for something, again where the service is busy; it may be missing."""
        asked = f"?{urlencode(query)}" if query else ""
        return self._asked("GET", f"{self._path(path)}{asked}", accepted=(MISSING,))

    def names(self, member: str, *path: str) -> list[str]:
        """All the names of a list that comes in pages; none where what it lists of is missing."""
        found: list[str] = []
        query = {"maxResults": str(_PAGE)}
        while True:
            page = self.get(*path, query=query).document
            found += page.get(member) or ()
            token = page.get("nextPageToken")
            if not token or token == query.get("pageToken"):
                return found
            query["pageToken"] = token

    def post(self, *path: str, body: Mapping[str, Any]) -> Answer:
        """Have something made or changed: once. Something may be missing, or taken.

        Raises `LostAnswerError` where it may have been done all the same.
        """
        return self._once("POST", self._path(path), body, accepted=(MISSING, TAKEN))

    def delete(self, *path: str) -> Answer:
        """Have something removed, which may be missing. Raises as `post`."""
        return self._once("DELETE", self._path(path), None, accepted=(MISSING,))

    def _path(self, parts: tuple[str, ...]) -> str:
        return "/".join([self._base, *(quote(part, safe="") for part in parts)])

    def _asked(self, method: str, path: str, accepted: tuple[int, ...] = ()) -> Answer:
        for _ in range(_TRIES - 1):
            with suppress(LostAnswerError):
                return self._once(method, path, None, accepted)
            time.sleep(_WAIT_S)
        return self._once(method, path, None, accepted)

    def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, accepted: tuple[int, ...]
    ) -> Answer:
        request = urllib.request.Request(f"{self.address}{path}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self.token is not None:
            # Whoever the service redirects to does not get it.
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answered:
                return Answer(answered.status, _document(answered.read()))
        except urllib.error.HTTPError as error:
            with error:
                return self._judged(method, path, error, accepted)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise LostAnswerError(
                f"{method} {self.address}{path}: the catalog did not answer ({reason}); check the "
                f"address and that the service runs"
            ) from error

    def _judged(
        self, method: str, path: str, error: urllib.error.HTTPError, accepted: tuple[int, ...]
    ) -> Answer:
        """An answer that tells of no success. Raises where nobody expects such a one."""
        try:
            answer = Answer(error.code, _document(error.read()))
        except (OSError, http.client.HTTPException, ValueError):
            answer = Answer(error.code, {})
        if answer.status in accepted:
            return answer
        said = answer.document.get("message") or error.reason
        text = f"{method} {self.address}{path}: the catalog answered {error.code} ({said})"
        if error.code == _UNKNOWN:
            raise UnsupportedError(
                f"{text}; it has no such service, so another engine has to do it"
            )
        if error.code in _BUSY or error.code >= 500:
            raise LostAnswerError(f"{text}; try again, and look into the log of the service")
        raise DataError(f"{text}; {_WAYS_OUT.get(error.code, _WAY_OUT)}")


_WAY_OUT = "check the address, the warehouse and the name"
_WAYS_OUT = {
    401: "give a token that is valid, by the option 'token' or in KEYTIDE_REST_TOKEN",
    403: "ask whoever runs the catalog for the right to do this, or give another token",
    404: "check the address and the name of the warehouse",
}


def _document(data: bytes) -> Mapping[str, Any]:
    """The object of an answer; an empty one for what has none. Raises `ValueError` for others."""
    if not data.strip():
        return {}
    found = json.loads(data)
    if not isinstance(found, dict):
        # Services answer changes with a text at times.
        return {}
    return found
