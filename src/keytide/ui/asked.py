"""The parameters of a request as values: numbers and strings of its address, and forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request

from keytide.errors import InvalidError

__all__ = ["Asked", "Form", "form_of", "whole_number"]

_FORM_BYTES_MAX = 1 << 20
_NUMBER_MAX = (1 << 63) - 1

Form = Mapping[str, str]
"""The fields of a form. If a field occurs several times, the last one counts."""


@dataclass(frozen=True)
class Asked:
    """The query parameters of an address."""

    request: Request

    @property
    def table(self) -> str:
        """The table that the address names."""
        return str(self.request.path_params["table"])

    def text(self, name: str) -> str | None:
        """A string; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def texts(self, name: str) -> list[str]:
        """All strings of a name, including empty ones."""
        return self.request.query_params.getlist(name)

    def number(self, name: str) -> int | None:
        """An integer, 0 or more; None if it is missing. Raises `InvalidError`."""
        given = self.text(name)
        return None if given is None else whole_number(given, name)


def whole_number(given: str, name: str) -> int:
    """An integer, 0 or more. Raises `InvalidError` for any other string."""
    if not (given.isascii() and given.isdecimal()) or len(given) > 19 or int(given) > _NUMBER_MAX:
        raise InvalidError(f"{name} is {given!r}; expected an integer, 0 or more")
    return int(given)


async def form_of(request: Request) -> Form:
    """The fields of a posted form. Raises `InvalidError` if it is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _FORM_BYTES_MAX:
            raise InvalidError(f"the form has more than {_FORM_BYTES_MAX >> 20} MiB; send less")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise InvalidError(f"the request has no valid form: {error}") from error
    return {name: values[-1] for name, values in fields.items()}
