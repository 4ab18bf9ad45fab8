"""A healthy table is found healthy, whatever others do to it while it is looked at."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import keytide as kt
from busy import Others, busy_store
from keytide.format import paths
from keytide.store import LocalStore, open_store

ROWS = [{"k": 1, "v": 1}, {"k": 2, "v": 2}]


def altered_and_written(lake: kt.Lake, number: int) -> None:
    lake.sql(f"ALTER TABLE t ADD c{number} INT; INSERT INTO t (k, c{number}) VALUES (1, 1)")


def tagged(lake: kt.Lake, number: int) -> None:
    lake.table("t").write(ROWS)
    lake.table("t").create_tag(f"x{number}")


def expired(lake: kt.Lake, number: int) -> None:
    lake.table("t").write([{"k": number, "v": number}])
    lake.sql("CALL sys.expire_snapshots(table => 't', retain_max => 1, retain_min => 1)")


def branched(lake: kt.Lake, number: int) -> None:
    table = lake.table("t")
    if number == 0:
        table.write(ROWS)
    else:
        table.delete_branch(f"b{number - 1}")
    table.create_branch(f"b{number}", empty=number % 2 == 0)


def half_deleted(lake: kt.Lake, number: int) -> None:
    """A branch goes, and is not gone yet."""
    table = lake.table("t")
    table.create_branch(f"b{number}", empty=True)
    if number == 3:
        store = table.metadata.store
        store.put(paths.unfinished_path("b0"), b"")
        store.delete([paths.join(paths.branch_dir("b0"), paths.schema_path(0))])


@pytest.mark.one_in(14)
@pytest.mark.parametrize("do", [altered_and_written, tagged, expired, branched, half_deleted])
def test_nothing_is_found_wrong_beside_others(
    tmp_path: Path, do: Callable[[kt.Lake, int], None]
) -> None:
    made = kt.connect(tmp_path / "made")
    made.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    for number in range(3):
        do(made, number)
    for request in itertools.count(1):
        path = tmp_path / str(request)
        shutil.copytree(tmp_path / "made", path)
        others = Others(partial(do, kt.connect(path), 3), request.__eq__)
        table = kt.connect(path, store=busy_store(open_store(str(path)), others)).table("t")
        assert table.verify(quick=True).findings == (), others.requests[request - 1 :]
        if request > len(others.requests):
            return


@pytest.mark.one_in(14)
@pytest.mark.parametrize("gap", [1, 2, 3, 5, 8])
def test_branch_that_goes_and_is_made_anew_meanwhile_is_no_damage(tmp_path: Path, gap: int) -> None:
    made = kt.connect(tmp_path / "made")
    made.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    made.table("t").write(ROWS)
    made.table("t").create_branch("b")
    for request in itertools.count(1):
        path = tmp_path / str(request)
        shutil.copytree(tmp_path / "made", path)
        branched = kt.connect(path).table("t")
        steps: list[Callable[[], object]] = [
            partial(branched.delete_branch, "b"),
            partial(branched.create_branch, "b"),
        ]
        others = Others(partial(_next, steps), {request, request + gap}.__contains__)
        table = kt.connect(path, store=busy_store(open_store(str(path)), others)).table("t")
        assert table.verify(quick=True).findings == (), others.requests[request - 1 :]
        if request > len(others.requests):
            return


def _next(steps: list[Callable[[], object]]) -> None:
    steps.pop(0)()


class _Lagging(LocalStore):
    """A folder of which no listing contains the file with that name."""

    hidden = ""

    def list_names(self, directory: str = "") -> list[str]:
        return [name for name in super().list_names(directory) if name != self.hidden]

    def sub(self, prefix: str) -> _Lagging:
        return type(self)(f"{self.root}/{prefix}")


@pytest.mark.parametrize("name", ["schema-0", "schema-1", "schema-2", "snapshot-2"])
def test_file_that_a_lagging_listing_lacks_is_not_missing(tmp_path: Path, name: str) -> None:
    made = kt.connect(tmp_path)
    made.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    for number in range(2):
        altered_and_written(made, number)
    altered_and_written(made, 2)
    store = type("Hiding", (_Lagging,), {"hidden": name})(str(tmp_path))
    assert kt.connect("", store=store).table("t").verify().findings == ()
    path = made.table("t").metadata.store.local_path(f"{name.split('-')[0]}/{name}")
    assert path is not None
    path.unlink()
    assert kt.connect("", store=store).table("t").verify().findings != ()
