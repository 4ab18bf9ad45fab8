"""Who may ask for a page: whoever has the secret that was printed when the server began.

All of it is values: the guard asks, and acts on the answers.
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
    """The secret of one server, and the names by which it may be called.

    With `any_address` every IP address is such a name: those of a server that listens at all of
    its machine's. A name of an IP address cannot be made to lead elsewhere, as one of a domain can.
    """

    cookie: str
    """The name of the cookie, which other servers of this machine do not share."""
    names: Collection[str] = _LOOPBACK
    any_address: bool = False
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)

    @classmethod
    def at(cls, host: str, port: int, own_name: str) -> Access:
        """Access to a server that listens at `host`, on a machine that is called `own_name`."""
        bare = without_brackets(host).lower()
        is_wide = bare in ("0.0.0.0", "::", "")
        names = _LOOPBACK | {bare, own_name.lower()} if is_wide else _LOOPBACK | {bare}
        return cls(f"keytide-{port}", names, any_address=is_wide)

    @property
    def form_token(self) -> str:
        """What a form has to bring along, so that it was this server's own. Tells no secret."""
        return hmac.new(self.secret.encode(), b"form", hashlib.sha256).hexdigest()

    def knows(self, given: str | None) -> bool:
        """Whether somebody brings the secret; takes as long for every other text."""
        return given is not None and hmac.compare_digest(given.encode(), self.secret.encode())

    def knows_form(self, given: str | None) -> bool:
        """Whether a form is one of this server's."""
        return given is not None and hmac.compare_digest(given.encode(), self.form_token.encode())

    def is_called(self, host: str | None) -> bool:
        """Whether a Host header names this server.

        Any port: one may be forwarded. Another name is that of a page elsewhere, whose domain was
        made to lead here so that its scripts could read what this server answers.
        """
        if not host:
            return False
        name = _without_port(host).rstrip(".").lower()
        return name in self.names or (self.any_address and _is_ip_address(name))


def without_brackets(host: str) -> str:
    """An address of IP 6 as it is without the brackets around it; any other host as it is."""
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
