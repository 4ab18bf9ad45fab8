"""A catalog that answers other things than the protocol says: rows, or a `KeytideError`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest
from catalog_server import Service, connected

import keytide as kt

CALLS: dict[str, Callable[[kt.Lake], Any]] = {
    "databases": lambda lake: lake.sql("SHOW DATABASES").to_pylist(),
    "tables": lambda lake: lake.tables(),
    "comment": lambda lake: lake.sql("DESCRIBE DATABASE shop").to_pylist(),
    "scan": lambda lake: lake.table("shop.t").scan().to_pylist(),
}
ODD = [None, 5, "x", [1], [None], {"a": 1}, [["x"]], [{}], True, -1, 10**40]


def places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member of a document."""
    if not isinstance(document, dict | list):
        return
    for name, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*before, name)
        yield from places(value, (*before, name))


def put(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    *outer, last = place
    changed = inner = copy.deepcopy(document)
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return changed


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("call", CALLS)
def test_any_member_of_any_answer_can_be_odd(service: Service, table: kt.Table, call: str) -> None:
    table.write([{"k": 1, "v": 1}])
    plain, answers = service.answer, {}

    def kept(method: str, path: str, *rest: Any) -> Any:
        answers[method, path] = said = plain(method, path, *rest)
        return said

    service.answer = kept  # type: ignore[method-assign]
    CALLS[call](connected(service))
    for asked, (status, document) in [*answers.items()]:
        for place in places(document):
            for odd in ODD:
                changed = put(document, place, odd)

                def answer(method: str, path: str, *rest: Any) -> Any:
                    is_it = (method, path) == asked  # noqa: B023  # called in this round
                    return (status, changed) if is_it else plain(method, path, *rest)  # noqa: B023

                service.answer = answer  # type: ignore[method-assign]
                try:
                    CALLS[call](connected(service))
                except kt.KeytideError:
                    continue


@pytest.mark.parametrize("tokens", [["a", "b"], ["a", "b", "c"], ["a", "b", "b", "a"]])
def test_pages_in_a_circle_are_refused(service: Service, tokens: list[str]) -> None:
    given = cycle(tokens)
    plain = service.answer

    def answer(method: str, path: str, *rest: Any) -> Any:
        if not path.endswith("/databases"):
            return plain(method, path, *rest)
        return 200, {"databases": ["shop"], "nextPageToken": next(given)}

    service.answer = answer  # type: ignore[method-assign]
    if len(set(tokens)) == len(tokens):
        with pytest.raises(kt.DataError, match=r"circle.*came twice"):
            connected(service).sql("SHOW DATABASES")
    else:
        connected(service).sql("SHOW DATABASES")  # the token of before again ends the list


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_answers_are_refused(service: Service, depth: int) -> None:
    deep = b'{"databases": ' + b"[" * depth + b"]" * depth + b"}"
    service.raw = lambda path: deep if path.endswith("/databases") else None
    with pytest.raises(kt.DataError, match="nested too deeply" if depth > 1000 else "databases"):
        connected(service).sql("SHOW DATABASES")
