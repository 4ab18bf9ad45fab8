"""Opens the warehouse of a metastore from an address and options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from keytide.base.arguments import shown
from keytide.base.extras import require
from keytide.catalogs.metastore.glue import GlueRegistry
from keytide.catalogs.metastore.hive import HiveRegistry
from keytide.catalogs.metastore.warehouse import MetastoreWarehouse
from keytide.errors import InvalidError
from keytide.store import CacheFolder, takes_options

__all__ = ["is_metastore_address", "open_metastore_warehouse"]

_GLUE, _HIVE = "glue://", "thrift://"
_WAREHOUSE, _ENDPOINT = "warehouse", "glue.endpoint"
_HIVE_PORT = 9083
_ACCOUNT = re.compile(r"\d{12}")
# boto3's names for options of the object store that Glue also needs.
_SHARED = {
    "region": "region_name",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


def is_metastore_address(address: str) -> bool:
    """Whether an address is that of a metastore."""
    return address.startswith((_GLUE, _HIVE))


def open_metastore_warehouse(
    address: str, options: Mapping[str, str] | None, copies: CacheFolder | None
) -> MetastoreWarehouse:
    """The warehouse of a metastore. No request is sent yet.

    The option `warehouse` is the location of new databases, and `glue.endpoint` replaces the
    service of the region. Other options are those of the tables' object store. Raises
    `InvalidError`, and `SetupError` without the client library.
    """
    given = dict(options or {})
    root = _root(given.pop(_WAREHOUSE, None))
    if address.startswith(_HIVE):
        require("pymetastore", "hive", "a Hive Metastore")
        return MetastoreWarehouse(_hive(address), root, given, copies)
    require("boto3", "glue", "AWS Glue")
    return MetastoreWarehouse(_glue(address, given), root, given, copies)


def _hive(address: str) -> HiveRegistry:
    parts = urlsplit(address)
    try:
        port = parts.port or _HIVE_PORT
    except ValueError:
        port = 0
    if not parts.hostname or not port or parts.username or parts.path.strip("/") or parts.query:
        raise InvalidError(
            "the URI of a Hive Metastore is thrift://host:port, found one with other parts (it "
            f"starts with {shown(address[:12])}); pass everything else as options"
        )
    return HiveRegistry(parts.hostname, port)


def _glue(address: str, options: dict[str, str]) -> GlueRegistry:
    account = address.removeprefix(_GLUE).strip("/")
    if account and not _ACCOUNT.fullmatch(account):
        raise InvalidError(
            "the URI of AWS Glue is glue:// for the catalog of your own account, or "
            f"glue://123456789012 for another account, found {shown(address)}"
        )
    endpoint = options.pop(_ENDPOINT, None)
    settings = {} if endpoint is None else {"endpoint_url": endpoint}
    for name, value in options.items():
        known = _SHARED.get(name.lower().removeprefix("aws_"))
        if known is not None:
            settings[known] = value
    return GlueRegistry(account or None, tuple(sorted(settings.items())))


def _root(given: str | None) -> str | None:
    """The location of new databases, as an address."""
    if not given:
        return None
    if takes_options(given) or given.startswith("file:"):
        return given
    return Path(given).expanduser().absolute().as_uri()
