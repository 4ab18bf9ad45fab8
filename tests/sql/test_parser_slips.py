"""A function called with too few or too many arguments is parsed, or refused as text.

The parser makes a value of its own of many calls, and some of these need arguments that are not
there.
"""

from __future__ import annotations

import pytest

import keytide as kt
from keytide.sql.cursor import Keytide, parse_tree, tokenize

PARSER = Keytide.parser_class
FUNCTIONS = sorted({*PARSER.FUNCTIONS, *PARSER.FUNCTION_PARSERS})


def refused(text: str) -> bool:
    try:
        parse_tree(text, tokenize(text), 0)
    except kt.InvalidError:
        return True
    return False


@pytest.mark.one_in(14)
@pytest.mark.parametrize("argument", ["1", "'a'", "k"])
def test_function_of_any_number_of_arguments_is_parsed_or_refused(argument: str) -> None:
    calls = [f"SELECT {name}({', '.join([argument] * n)})" for name in FUNCTIONS for n in range(6)]
    found = [call for call in calls if refused(call)]
    assert f"SELECT MAP({argument})" in found
    assert f"SELECT ABS({argument})" not in found


def test_slip_of_the_parser_is_an_error_about_the_text() -> None:
    with pytest.raises(kt.InvalidError, match="cannot be parsed"):
        kt.connect("memory://slips").sql("SELECT map(1)")
