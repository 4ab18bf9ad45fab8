"""From a path or URI to a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keytide.errors import InvalidError
from keytide.store import open_store


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("/data/ware house", "/data/ware house"),
        ("/data/100%25", "/data/100%25"),
        ("/data/x/../y/", "/data/y"),
        ("file:///data/ware%20house", "/data/ware house"),
        ("file:/data", "/data"),
        ("file://localhost/data", "/data"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("memory://name/a", "memory://name/a"),
    ],
)
def test_location_gives_the_store_of_that_uri(location: str, uri: str) -> None:
    options = {"skip_signature": "true"} if location.startswith("gs") else None
    assert open_store(location, options).uri == uri


@pytest.mark.parametrize(
    "uri", ["az://container/a", "abfss://container@account.dfs.core.windows.net/a"]
)
def test_azure_takes_its_account_from_the_options_or_the_uri(uri: str) -> None:
    assert open_store(uri, {"account_name": "account"}).uri == uri


def test_relative_and_home_paths_become_absolute() -> None:
    assert open_store("warehouse").uri == os.path.abspath("warehouse")
    assert open_store(Path("warehouse")).uri == os.path.abspath("warehouse")
    assert open_store("~/warehouse").uri == os.path.expanduser("~/warehouse")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "empty: give a directory"),
        ("ftp://host/a", "unknown scheme ftp://.*s3://"),
        ("file://host/a", "contains the host 'host'"),
        ("s3:///a", "contains no bucket"),
        ("s3://bucket/a/../b", "not a valid path inside a store"),
        ("a\0b", "NUL"),
        ("file:///a%00b", "NUL"),
        ("s3://bucket/a\0b", "NUL"),
        ("az://container/a?sig=hunter2", "credentials or a query"),
        ("s3://user:hunter2@bucket/a", "credentials or a query"),
    ],
)
def test_location_that_cannot_be_is_invalid(location: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        open_store(location)
    assert "hunter2" not in str(caught.value)


def test_local_directory_takes_no_options() -> None:
    with pytest.raises(InvalidError, match=r"has no storage options, found \['region'\]"):
        open_store("/data", {"region": "eu-central-1"})


def test_opening_writes_nothing(tmp_path: Path) -> None:
    open_store(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
