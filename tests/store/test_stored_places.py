"""Whether a file that metadata names is below a folder: as the file system resolves it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.store import is_stored_inside

PARTS = st.lists(
    st.sampled_from(
        ["allowed", "allowed-evil", "secret", "..", ".", "", "link", "back", "%2e%2e", "a b", "f"]
    ),
    min_size=1,
    max_size=6,
)
SCHEMES = st.sampled_from(["", "file:", "file://", "file:///", "file://host"])
OTHER = st.sampled_from(["s3://b", "memory://", "gs://allowed", "FILE://", "http://x"])


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("around").resolve()
    for name in ("allowed", "allowed-evil", "secret", "allowed/secret"):
        (place / name).mkdir()
    (place / "allowed" / "link").symlink_to(place / "secret")
    (place / "secret" / "back").symlink_to(place / "allowed")
    (place / "allowed" / "f").symlink_to(place / "secret" / "f")
    return place


@given(parts=PARTS, scheme=SCHEMES, of_folder=SCHEMES, ending=st.sampled_from(["", "/", "//"]))
def test_local_file_is_inside_where_its_links_lead(
    around: Path, parts: list[str], scheme: str, of_folder: str, ending: str
) -> None:
    path = f"{around}/{'/'.join(parts)}"
    inside = os.path.realpath(path).startswith(f"{around}/allowed/")
    assert is_stored_inside(scheme + path, f"{of_folder}{around}/allowed{ending}") is inside


@given(parts=PARTS, scheme=SCHEMES, other=OTHER)
def test_file_of_another_scheme_or_without_a_root_is_outside(
    around: Path, parts: list[str], scheme: str, other: str
) -> None:
    path = f"{around}/allowed/{'/'.join(parts)}"
    assert not is_stored_inside(other + path, f"{scheme}{around}/allowed")
    assert not is_stored_inside(scheme + path, f"{other}{around}/allowed")
    assert not is_stored_inside("/".join(parts), f"{scheme}{around}/allowed")
    assert not is_stored_inside(f"{scheme}{path}\0", f"{scheme}{around}/allowed")


@given(parts=PARTS)
def test_object_is_inside_if_each_part_of_its_name_is_plain(parts: list[str]) -> None:
    plain = not {"", ".", ".."} & {*parts}
    name = "/".join(parts)
    assert is_stored_inside(f"s3://b/allowed/{name}", "s3://b/allowed/") is plain
    assert not is_stored_inside(f"s3://b/allowed-evil/{name}", "s3://b/allowed")
    assert not is_stored_inside(f"s3://c/allowed/{name}", "s3://b/allowed")
