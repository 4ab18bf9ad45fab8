"""`keytide.__all__` is the public surface: sorted, complete, and nothing else."""

from __future__ import annotations

from types import ModuleType

import keytide


def test_public_names_are_sorted_and_listed_once() -> None:
    assert list(keytide.__all__) == sorted(set(keytide.__all__))


def test_every_public_name_can_be_reached() -> None:
    assert [name for name in keytide.__all__ if not hasattr(keytide, name)] == []


def test_no_public_name_is_left_out() -> None:
    """Submodules become attributes when something imports them; those need no listing."""
    reachable = {
        name
        for name, value in vars(keytide).items()
        if not name.startswith("_") and name != "annotations" and not isinstance(value, ModuleType)
    }
    assert reachable - set(keytide.__all__) == set()
