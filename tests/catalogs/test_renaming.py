"""Tables under another name: all of it moves, and nobody loses what was committed."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.format import paths
from keytide.store.local import LocalStore
from table_rows import by_key

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})


@pytest.fixture
def lake(tmp_path: Path) -> kt.Lake:
    lake = kt.connect(tmp_path)
    lake.create_table("shop.a", SCHEMA, ["k"]).write([{"k": 1, "v": "one"}])
    return lake


def test_table_moves_with_history_tags_and_branches(lake: kt.Lake) -> None:
    table = lake.table("shop.a")
    assert isinstance(table, kt.Table)
    table.create_tag("first")
    table.create_branch("trial").write([{"k": 2, "v": "tried"}])
    moved = lake.rename_table("shop.a", "b")
    assert (moved.name, lake.tables()) == ("shop.b", ["shop.b"])
    lake.sql("ALTER TABLE SHOP.b RENAME TO other.c; INSERT INTO other.c VALUES (3, 'three')")
    assert by_key(lake.table("other.c")) == {1: "one", 3: "three"}
    assert by_key(lake.table("other.c$branch_trial")) == {1: "one", 2: "tried"}
    assert lake.sql("SELECT v FROM other.c VERSION AS OF 'first'").to_pylist() == [{"v": "one"}]
    lake.create_table("shop.a", SCHEMA, ["k"]).write([{"k": 9, "v": "new"}])
    assert by_key(lake.table("shop.a")) == {9: "new"}
    with pytest.raises(kt.NotFoundError):
        lake.table("shop.b")


def test_name_that_is_taken_or_none_is_refused(lake: kt.Lake) -> None:
    lake.create_table("shop.b", SCHEMA, ["k"])
    for name in ("shop.b", "SHOP.B"):
        with pytest.raises(kt.AlreadyExistsError, match=r"shop\.b already exists"):
            lake.rename_table("shop.a", name)
    for name in ("sys.a", "a.b.c", "shop.a$branch_x"):
        with pytest.raises(kt.InvalidError):
            lake.rename_table("shop.a", name)
    with pytest.raises(kt.NotFoundError, match=r"shop\.nobody"):
        lake.rename_table("shop.nobody", "c")
    (Path(lake.uri) / "shop.db" / "c").mkdir()
    (Path(lake.uri) / "shop.db" / "c" / "note.txt").write_text("mine")
    with pytest.raises(kt.AlreadyExistsError, match="the folder contains other files"):
        lake.rename_table("shop.a", "c")
    assert lake.rename_table("shop.a", "A").name == "shop.A"


def test_far_store_refuses_and_says_why() -> None:
    lake = kt.connect(f"memory://renaming-{uuid4()}")
    lake.create_table("a", SCHEMA, ["k"])
    with pytest.raises(kt.UnsupportedError, match="object store cannot rename folders"):
        lake.rename_table("a", "b")
    assert lake.tables() == ["default.a"]


@pytest.mark.parametrize("has_snapshots", [True, False])
@pytest.mark.parametrize("renamed", ["before", "after"])
def test_write_beside_renaming_is_refused_or_moves_along(
    lake: kt.Lake, monkeypatch: pytest.MonkeyPatch, has_snapshots: bool, renamed: str
) -> None:
    """The folder gets its new name right before, or right after, the snapshot is created."""
    table = lake.table("shop.a") if has_snapshots else lake.create_table("shop.n", SCHEMA, ["k"])
    assert isinstance(table, kt.Table)
    known = by_key(table)
    create = LocalStore.create

    def beside(self: LocalStore, path: str, data: bytes) -> bool:
        if path != paths.snapshot_path(len(table.snapshots()) + 1):
            return create(self, path, data)
        monkeypatch.undo()
        if renamed == "before":
            lake.rename_table(table.name, "z")
        made = create(self, path, data)
        if renamed == "after":
            lake.rename_table(table.name, "z")
        return made

    monkeypatch.setattr(LocalStore, "create", beside)
    if renamed == "before":
        with pytest.raises(kt.ConflictError, match="renamed or dropped"):
            table.write([{"k": 2, "v": "late"}])
    else:
        table.write([{"k": 2, "v": "late"}])
        known |= {2: "late"}
    assert by_key(lake.table("shop.z")) == known
    assert table.name not in lake.tables()
    lake.rename_table("shop.z", table.name)  # nothing that the writer left stands in the way
    assert by_key(lake.table(table.name)) == known


def test_alter_beside_renaming_makes_no_table(
    lake: kt.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keytide.catalogs import schema_changes

    table, try_ = lake.table("shop.a"), schema_changes._try

    def beside(*arguments: object) -> None:
        monkeypatch.undo()
        try_(*arguments)  # type: ignore[arg-type]
        lake.rename_table("shop.a", "b")

    monkeypatch.setattr(schema_changes, "_try", beside)
    assert isinstance(table, kt.Table)
    with pytest.raises(kt.ConflictError, match="renamed or dropped"):
        table.alter(SetOption("num-levels", "5"))
    assert lake.tables() == ["shop.b"]


def test_published_table_is_published_where_it_lies(lake: kt.Lake) -> None:
    options = {"publish": "iceberg,delta", "full-compaction.delta-commits": "1"}
    table = lake.create_table("shop.p", SCHEMA, ["k"], options=options)
    table.write([{"k": 1, "v": "one"}])
    moved = lake.rename_table("shop.p", "q")
    metadata = sorted(Path(moved.uri, "metadata").glob("*.metadata.json"))[-1].read_text()
    assert "shop.db/q" in metadata
    told = lake.sql("SELECT * FROM shop.q$publications").to_pylist()
    assert len(told) == 2
