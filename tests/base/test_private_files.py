"""Files that Keytide makes outside of tables are for no other account, whatever the umask is."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.base.row_engine import row_engine
from keytide.cli.common_options import spark_log
from keytide.cli.prompt import _history
from keytide.dml.fragments import Spool
from keytide.read.lookup_files import _made
from keytide.sql.local_query import local_database
from new_tables import empty_store

SOURCE = Path(kt.__file__).parent
MIB = 1 << 20


class Watch:
    """Collects the files below a folder that others can read, when `look` is called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_on = True
        self.readable: set[str] = set()
        self.seen: set[str] = set()

    def look(self) -> None:
        folders = [self.root]
        while folders:
            for entry in os.scandir(folders.pop()):
                path = Path(entry.path)
                self.seen.add(str(path.relative_to(self.root)))
                if entry.stat(follow_symlinks=False).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    self.readable.add(str(path.relative_to(self.root)))
                    if entry.is_dir():
                        folders.append(path)  # what a private folder has in it is private too

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at files before they are deleted or renamed."""
        if self.is_on and event in ("os.remove", "os.rmdir", "os.rename", "shutil.rmtree"):
            self.is_on = False  # a look itself is not heard
            self.look()
            self.is_on = True


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch of a folder where all temporary files and those of the account are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    found = Watch(tmp_path)
    sys.addaudithook(found.hear)
    before = os.umask(0)
    try:
        yield found
    finally:
        os.umask(before)
        found.is_on = False


def spilled(watch: Watch) -> None:
    """A sort that does not fit in DuckDB's memory."""
    with local_database(memory_limit="50MB", threads="1", preserve_insertion_order="true") as con:
        [(spill,)] = con.sql("SELECT current_setting('temp_directory')").fetchall()
        rows = con.execute("SELECT * FROM range(4000000) AS t(i) ORDER BY hash(i), i + 1")
        assert rows.fetchone() is not None
        assert any(Path(spill).iterdir())
        watch.look()


def spooled(watch: Watch) -> None:
    spool = Spool(1)
    spool.add(pa.record_batch({"a": range(1000)}))
    watch.look()
    assert [*spool.tables()]
    spool.close()


def looked_up(watch: Watch) -> None:
    assert _made([pl.DataFrame({"k": range(1000)})], None) is not None


def told(watch: Watch) -> None:
    file = watch.root / "keytide/sql-history"
    for mode in (None, 0o666):  # that of an earlier release
        if mode is not None:
            file.chmod(mode)
        _history().store_string("SELECT 'a secret'")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def logged(watch: Watch) -> None:
    with spark_log() as log:
        log.write_text("a secret")


def cached(watch: Watch) -> None:
    far = empty_store()
    lake = kt.connect("", store=far, cache=watch.root / "cache")
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    table.write([{"k": 1}])
    assert table.scan().to_pylist() == [{"k": 1}]
    assert lake.table("t").get(1) == {"k": 1}


def computed(watch: Watch) -> None:
    assert row_engine().execute("SELECT current_setting('temp_directory')").fetchall() == [("",)]


FEATURES: dict[str, tuple[Callable[[Watch], None], int]] = {
    "sql/local_query": (spilled, 1),
    "dml/fragments": (spooled, 1),
    "read/lookup_files": (looked_up, 1),
    "cli/prompt": (told, 1),
    "cli/common_options": (logged, 1),
    "store/cache_folder": (cached, 1),
    "base/row_engine": (computed, 0),
}
"""What makes files outside of tables, by module, and how many it makes at least."""


@pytest.mark.parametrize("module", FEATURES)
def test_files_outside_of_tables_are_private_under_any_umask(watch: Watch, module: str) -> None:
    feature, files = FEATURES[module]
    feature(watch)
    watch.look()
    assert len(watch.seen) >= files
    assert not watch.readable


MAKES_FILES = re.compile(
    r"tempfile\.(NamedTemporaryFile|TemporaryDirectory|mk\w+)\(|os\.open\(|os\.mkdir\(|os\.makedirs\(|\.mkdir\(|\.touch\(|"
    r"\.write_(text|bytes)\(|duckdb\.connect\(|sqlite3\.connect\(|open\([^)]*[\"'][wxa]"
)
"""What makes a file that has a name. One of `tempfile.TemporaryFile` has none."""
IN_TABLES = {"store/local", "store/local_writes", "testing/judge"}
"""Modules that make the files of tables and lists of them, which have the modes of the umask."""
MAKES_NONE = {"cli/command_group", "duckdb", "dml/adbc", "dml/databases"}


def test_every_module_that_makes_files_is_tried() -> None:
    found = {
        str(path.relative_to(SOURCE).with_suffix(""))
        for path in SOURCE.rglob("*.py")
        if MAKES_FILES.search(path.read_text())
    }
    assert found - IN_TABLES - MAKES_NONE == FEATURES.keys()
