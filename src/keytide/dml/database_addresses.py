"""Addresses of databases: checks, and the removal of secrets from messages.

An address that is not understood can contain a password anywhere, so none of it is shown. In an
address that is understood, the secrets are known, and are removed from all messages.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from keytide.errors import InvalidError

_POSTGRES = re.compile(
    r"""(?P<scheme>postgres(?:ql)?)://
    (?:(?P<user>[^\s:/?\#@\[\]]*)(?::(?P<password>[^\s:/?\#@\[\]]*))?@)?
    (?P<hosts>(?:\[[\da-fA-F:.%\w]*\]|[^\s:/?\#@\[\],]*)(?::\d*)?
        (?:,(?:\[[\da-fA-F:.%\w]*\]|[^\s:/?\#@\[\],]*)(?::\d*)?)*)
    (?:/(?P<database>[^\s/?\#@]*))?
    (?:\?(?P<options>\w+=[^\s&=\#@]*(?:&\w+=[^\s&=\#@]*)*)?)?""",
    re.VERBOSE,
)


_PLAIN_OPTIONS = {
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
    "fallback_application_name", "gssencmode", "host", "hostaddr", "keepalives", "keepalives_count",
    "keepalives_idle", "keepalives_interval", "load_balance_hosts", "port", "require_auth",
    "service", "sslmode", "ssl_min_protocol_version", "target_session_attrs", "tcp_user_timeout",
    "user",
}  # fmt: skip
"""Options of an address that are not secret. Any other option may be."""


def check_postgres(place: str) -> None:
    """Raise `InvalidError`, without showing the address, if it is not a PostgreSQL address."""
    if _POSTGRES.fullmatch(place) is None:
        raise InvalidError(
            "the PostgreSQL URI is invalid (it is not shown, because it can contain a password); "
            "expected postgresql://user:password@host:port/database?option=value, with special "
            "characters percent-encoded: %40 for @, %2F for /, %3A for :"
        )


def place_of_postgres(place: str) -> str:
    """The hosts and the database of an address, without the user."""
    found = _POSTGRES.fullmatch(place)
    if found is None:
        return ""
    database = found["database"]
    return f"{found['hosts'] or 'localhost'}{'' if database is None else '/' + database}"


def without_secrets(text: str, place: str) -> str:
    """A message about an address without the secrets of the address."""
    found = _POSTGRES.fullmatch(place)
    options = (o.partition("=") for o in ((found and found["options"]) or "").split("&"))
    given = [value for name, _, value in options if name.lower() not in _PLAIN_OPTIONS]
    given += [found["password"]] if found is not None and found["password"] else []
    secrets = {each for word in given if word for each in (word, unquote(word))}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
