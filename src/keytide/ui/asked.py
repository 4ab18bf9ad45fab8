"""What a request asks for, as values: numbers and texts of its address, and forms."""

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
"""The fields of a form; of those that come several times the last counts."""


@dataclass(frozen=True)
class Asked:
    """What stands behind the `?` of an address."""

    request: Request

    @property
    def table(self) -> str:
        """The table that the address names."""
        return str(self.request.path_params["table"])

    def text(self, name: str) -> str | None:
        """A text; None where it is left out or empty."""
        return self.request.query_params.get(name) or None

    def texts(self, name: str) -> list[str]:
        """All texts of a name, empty ones too."""
        return self.request.query_params.getlist(name)

    def number(self, name: str) -> int | None:
        """A whole number that is not negative; None where it is left out. Raises `InvalidError`."""
        given = self.text(name)
        return None if given is None else whole_number(given, name)


def whole_number(given: str, name: str) -> int:
    """A whole number that is not negative. Raises `InvalidError` for another text."""
    if not (given.isascii() and given.isdecimal()) or len(given) > 19 or int(given) > _NUMBER_MAX:
        raise InvalidError(f"{name} is {given!r}; expected a whole number")
    return int(given)


async def form_of(request: Request) -> Form:
    """The fields of a form that was posted. Raises `InvalidError` for one that is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _FORM_BYTES_MAX:
            raise InvalidError(f"the form has more than {_FORM_BYTES_MAX >> 20} MiB; send less")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise InvalidError(f"what was posted is no form: {error}") from error
    return {name: values[-1] for name, values in fields.items()}
