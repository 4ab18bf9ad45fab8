"""Tables of Java Paimon 2.0 with its newer features, as Java stored them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import keytide as kt
from feature_cases import FEATURE_TABLES, OUTSIDE
from feature_checks import assert_read_right_or_refused
from keytide.format.cache import forget_files

ARCHIVE = Path(__file__).parents[1] / "data" / "features.tar.xz"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    outside = f"{'/' * (len(OUTSIDE) - len(str(folder)) - len('features/outside'))}features/outside"
    for path in folder.rglob("external_paths/*/*"):
        path.write_bytes(path.read_bytes().replace(OUTSIDE.encode(), f"{folder}{outside}".encode()))
    return folder / "features"


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", FEATURE_TABLES)
def test_table_of_java_is_read_right_or_refused_by_name(stored: Path, name: str) -> None:
    rows = json.loads((stored / "rows.json").read_text())
    lake = kt.connect(str(stored))
    assert_read_right_or_refused(lake, name, FEATURE_TABLES[name], rows[name])


def test_files_outside_of_a_table_of_java_are_read_only_where_it_allows_them(stored: Path) -> None:
    table = kt.connect(str(stored)).table("external_paths")
    for entry in table.stored.newest_files().entries:
        assert "features/outside" in str(entry.file.external_path)
    path = Path(table.uri.removeprefix("file://")) / "schema" / "schema-0"
    path.write_text(path.read_text().replace("/outside", "/inside"))
    forget_files()
    with pytest.raises(kt.DataError, match=r"data-file\.external-paths.*features/inside"):
        kt.connect(str(stored)).table("external_paths").scan().to_arrow()


def test_contents_of_blobs_are_found_wherever_the_table_lies(stored: Path) -> None:
    table = kt.connect(str(stored)).table("blob")
    assert {row["k"]: row["x"] for row in table.scan()} == {1: b"new", 2: b"abc", 3: None}


def test_blob_whose_content_is_gone_names_the_file(stored: Path) -> None:
    table = kt.connect(str(stored)).table("blob_in_partitions")
    folder = Path(table.uri.removeprefix("file://"))
    for path in folder.rglob("*.managed.blob"):
        path.unlink()
    with pytest.raises(kt.DataError, match=r"managed\.blob"):
        table.scan().to_arrow()
    assert table.scan(columns=["k"]).to_arrow().num_rows == 2


def test_blob_is_not_published(stored: Path) -> None:
    table = kt.connect(str(stored)).table("blob")
    schema = next(Path(table.uri.removeprefix("file://")).glob("schema/schema-0"))
    told = json.loads(schema.read_text())
    told["options"]["publish"] = "delta"
    schema.write_text(json.dumps(told))
    (publication,) = kt.connect(str(stored)).table("blob").publish()
    assert publication.snapshot_id is None
    assert "'x' is BLOB" in str(publication.reason)
