"""Files that other programs wrote are read as they are meant, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

import keytide as kt

LINES = "k,x\n1,1.5\n"


def read(tmp_path: Path) -> list[dict[str, object]]:
    lake = kt.connect(tmp_path / "lake", allow_external_files=True)
    lake.sql(
        "CREATE EXTERNAL TABLE t (k BIGINT, x DOUBLE, PRIMARY KEY (k) NOT ENFORCED) USING csv "
        f"LOCATION '{tmp_path}/f' WITH ('watermark.key' = 'x')"
    )
    return lake.sql("SELECT * FROM t").to_pylist()


@pytest.mark.parametrize("value", ["1e400", "-1e400", "0x10", "-0X1f"])
@pytest.mark.parametrize("column", ["k", "x"])
def test_a_number_that_would_be_another_one_is_refused(
    tmp_path: Path, value: str, column: str
) -> None:
    (tmp_path / "f").mkdir()
    row = {"k": "1", "x": "2"} | {column: value}
    (tmp_path / "f/a.csv").write_text(f"k,x\n{row['k']},{row['x']}\n")
    with pytest.raises(kt.DataError, match=rf"a\.csv.*column '{column}'"):
        read(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_text_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/a.csv").write_bytes(LINES.encode(encoding))
    with pytest.raises(kt.DataError, match=r"a\.csv.*UTF-16 or UTF-32, expected UTF-8"):
        read(tmp_path)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/d").symlink_to(tmp_path / "f", target_is_directory=True)
    with pytest.raises(kt.DataError, match="links that lead in a circle"):
        read(tmp_path)


def test_infinity_by_its_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/a.csv").write_text("k,x\n1,inf\n")
    assert read(tmp_path) == [{"k": 1, "x": float("inf")}]
