"""Temporary credentials from a catalog for the files of one table."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from threading import Lock
from typing import TYPE_CHECKING

from cachetools import LRUCache

from keytide.catalogs.rest.client import RestClient
from keytide.errors import DataError, UnsupportedError

if TYPE_CHECKING:
    from obstore.store import S3Credential

__all__ = ["LENDS", "TableToken"]

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
class _Lent:
    """Options of a store, and when they expire, None for never."""

    options: dict[str, str]
    ends_ms: int | None

    @property
    def is_fresh(self) -> bool:
        return self.ends_ms is None or self.ends_ms - time.time() * 1000 > _SAFETY_MS


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
        told = self._lent().options
        return {name: told[name] for name in ("endpoint", "region") if name in told}

    def __call__(self) -> S3Credential:
        """The current credentials.

        Raises `DataError` if the catalog provides none, and `UnsupportedError` for those of a store
        other than S3.
        """
        lent = self._lent()
        ends = None
        if lent.ends_ms is not None:
            ends = datetime.fromtimestamp(lent.ends_ms / 1000, timezone.utc)
        return {
            "access_key_id": lent.options["access_key_id"],
            "secret_access_key": lent.options["secret_access_key"],
            "token": lent.options.get("session_token"),
            "expires_at": ends,
        }

    def _lent(self) -> _Lent:
        with _LOCK:
            known = _KNOWN.get(self)
        if known is None or not known.is_fresh:
            known = self._asked()
            with _LOCK:
                _KNOWN[self] = known
        return known

    def _asked(self) -> _Lent:
        path = ("databases", self.database, "tables", self.table, "token")
        answer, where = self.client.get(*path), f"table {self.database}.{self.table}"
        told = answer.document.get("token")
        if not answer.is_done or not isinstance(told, dict):
            raise DataError(
                f"{where}: {self.client.uri} issues no credentials for it "
                f"({answer.document.get('message') or answer.status}); check the catalog"
            )
        options = {
            name: str(told[theirs])
            for name, known in _NAMES.items()
            for theirs in known
            if theirs in told
        }
        if not options.keys() >= {"access_key_id", "secret_access_key"}:
            raise UnsupportedError(
                f"{where}: {self.client.uri} issues {', '.join(sorted(told)) or 'nothing'}, but "
                f"this release supports only S3 credentials; connect with '{LENDS}' = 'false' "
                "and your own credentials, if the catalog allows it"
            )
        ends_ms = answer.document.get("expiresAtMillis")
        return _Lent(options, ends_ms if isinstance(ends_ms, int) else None)


_KNOWN: LRUCache[TableToken, _Lent] = LRUCache(_TABLES_MAX)
_LOCK = Lock()
