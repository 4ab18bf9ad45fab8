"""Markup and the pictures that are made of it."""

from __future__ import annotations

import pytest

from keytide.show.elements import Markup, element, joined


def test_strings_in_elements_are_escaped_and_markup_is_not() -> None:
    bold = element("b", "a & <b>", title="\"'")
    assert bold == '<b title="&quot;&#x27;">a &amp; &lt;b&gt;</b>'
    assert element("p", bold, "<") == f"<p>{bold}&lt;</p>"
    assert joined("<", bold) == f"&lt;{bold}"
    assert isinstance(element("p", bold), Markup)


def test_control_characters_in_elements_are_shown_as_escapes() -> None:
    assert element("b", "a\u202eb", title="\x00") == '<b title="\\x00">a\\u202eb</b>'


@pytest.mark.parametrize(
    ("value", "shown"), [(1.25, "1.2"), (2.0, "2"), (3, "3"), ("4.00", "4.00")]
)
def test_floats_in_attributes_have_one_decimal(value: object, shown: str) -> None:
    assert element("rect", x=value) == f'<rect x="{shown}"></rect>'


def test_markup_stays_as_it_is_in_a_template() -> None:
    jinja2 = pytest.importorskip("jinja2")
    page = jinja2.Environment(autoescape=True).from_string("{{ shown }}")
    assert page.render(shown=element("b", "<")) == "<b>&lt;</b>"
