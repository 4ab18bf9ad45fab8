"""Which requests are allowed: those with the secret that was printed when the server started.

This module only decides. The guard acts on the decisions.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

__all__ = ["Access", "without_brackets"]

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Access:
    """The secret of one server, and the host names that it answers to.

    With `any_address` it answers to every IP address, because it listens on all addresses of its
    machine. An IP address cannot be redirected to another machine, as a domain name can.
    """

    cookie: str
    """The name of the cookie. Other servers on this machine have other names."""
    names: Collection[str] = _LOOPBACK
    any_address: bool = False
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)

    @classmethod
    def at(cls, host: str, port: int, own_name: str) -> Access:
        """Access to a server that listens on `host`, on a machine with the name `own_name`."""
        bare = without_brackets(host).lower()
        is_wide = bare in ("0.0.0.0", "::", "")
        names = _LOOPBACK | {bare, own_name.lower()} if is_wide else _LOOPBACK | {bare}
        return cls(f"keytide-{port}", names, any_address=is_wide)

    @property
    def form_token(self) -> str:
        """The token that every form of this server contains. It does not reveal the secret."""
        return hmac.new(self.secret.encode(), b"form", hashlib.sha256).hexdigest()

    def knows(self, given: str | None) -> bool:
        """Whether `given` is the secret. Takes the same time for every other string."""
        return given is not None and hmac.compare_digest(given.encode(), self.secret.encode())

    def knows_form(self, given: str | None) -> bool:
        """Whether `given` is the token of this server's forms."""
        return given is not None and hmac.compare_digest(given.encode(), self.form_token.encode())

    def is_called(self, host: str | None) -> bool:
        """Whether a Host header names this server.

        Any port is accepted, because it can be forwarded. Another name means that a page of another
        site redirected its domain to this machine, so that its scripts could read the answers.
        """
        if not host:
            return False
        name = _without_port(host).rstrip(".").lower()
        return name in self.names or (self.any_address and _is_ip_address(name))


def without_brackets(host: str) -> str:
    """An IPv6 address without the brackets around it; any other host unchanged."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
