"""The pages of the reference name classes and functions that exist where they say."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "api"
NAMES = sorted(
    {
        name
        for page in PAGES.glob("*.md")
        for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_the_reference_is_defined_where_it_says(name: str) -> None:
    module, _, member = name.rpartition(".")
    home = getattr(import_module(module), member).__module__
    assert f"{home}.".startswith(f"{module}.")  # a package has what its modules define
