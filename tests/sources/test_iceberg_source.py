"""Iceberg tables as sources: the rows that the library reads, in the order in which they came."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType, TimeType
from pyiceberg.utils.config import Config

import keytide as kt
from iceberg_tables import as_version, catalog, create, delete_positions, live_files, rewrite
from keytide.errors import DataError, InvalidError, NotFoundError, SetupError, UnsupportedError
from keytide.predicate.predicate import And, Comparison, In, IsNull, Not, Or
from keytide.sources.iceberg import PinnedIceberg, SnapshotFacts, open_source, origins_of
from keytide.sources.source import Place
from keytide.store import open_store
from sources import all_rows, check_order, counted, place, rows_of

KEYS = {"access_key_id": "me", "secret_access_key": "s3cret"}
NUMBERS = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def pinned(folder: Path, version: str | int | None = None) -> PinnedIceberg:
    options = {"catalog.uri": f"sqlite:///{folder}/c.db"}
    return open_source(place("n.t", options)).pin(version)


def numbered(*numbers: int) -> pa.Table:
    return pa.table({"k": [n % 5 for n in numbers], "n": numbers}, schema=NUMBERS)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 4), min_size=1, max_size=4)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 4), min_size=1, max_size=1)),
        st.tuples(st.just("positions"), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
        st.tuples(st.just("rewrite"), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
    ),
    min_size=1,
    max_size=7,
)


@pytest.mark.takes_turns
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_rows_are_those_of_the_library_in_the_order_in_which_they_came(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("iceberg")
    table = create(folder, NUMBERS)
    table.append(numbered(0, 1))
    written = 2
    for step, given_ in steps:
        files = live_files(table)
        if step == "append":
            table.append(numbered(*range(written, written + len(given_))))
            written += len(given_)
        elif step == "delete":
            table.delete(f"k = {given_[0]}")
        elif files and step == "positions":
            file = files[given_[0] % len(files)]
            delete_positions(table, {file.file_path: [given_[1] % file.record_count]})
        elif files and not any(task.delete_files for task in table.scan().plan_files()):
            chosen = {files[i % len(files)].file_path: files[i % len(files)] for i in given_}
            rewrite(table, list(chosen.values()), Operation.OVERWRITE)
    source = pinned(folder)
    assert counted(all_rows(source)) == counted(table.scan().to_arrow().to_pylist())
    check_order(source, "n")
    about_key = Comparison("k", "<=", 1)
    expected = table.scan("k <= 1").to_arrow().to_pylist()
    assert counted(all_rows(source, about_key)) == counted(expected)


def places(source: PinnedIceberg) -> list[tuple[int, bool]]:
    return [(part.commit, part.is_in_order) for part in source.parts()]


def test_appended_files_have_their_sequence_numbers(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    for n in range(3):
        table.append(numbered(n))
    assert places(pinned(tmp_path)) == [(1, True), (2, True), (3, True)]


def test_rows_that_a_delete_copied_are_not_taken_for_later_ones(tmp_path: Path) -> None:
    """0 and 1 come first, then 2; a DELETE of 1 copies 0, which stays older than 2."""
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0, 1))
    table.append(numbered(2))
    table.delete("n = 1")
    table.append(numbered(3))
    assert places(pinned(tmp_path)) == [(3, False), (3, False), (4, True)]


def test_rows_of_expired_snapshots_are_in_no_order_and_before_all_others(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    for n in range(3):
        table.append(numbered(n))
    first, second, _ = table.snapshots()
    table.maintenance.expire_snapshots().by_ids([first.snapshot_id, second.snapshot_id]).commit()
    source = pinned(tmp_path)
    assert places(source) == [(2, False), (2, False), (3, True)]
    check_order(source, "n")


def test_file_that_replaced_others_has_the_commits_of_those() -> None:
    """1 and 2 appended, 3 appended, 4 replaced 1 and 2; of 5 nothing is known but its number."""
    snapshots = {i: SnapshotFacts(i, i, "append") for i in (1, 2, 3)}
    snapshots[4] = SnapshotFacts(4, 4, "replace")
    removed = {4: [1, 2]}
    found = origins_of([(3, 3), (4, 4), (99, 5)], snapshots, removed.__getitem__)
    assert [(o.first, o.last, o.is_in_order) for o in found] == [
        (3, 3, True), (1, 2, False), (0, 5, False),
    ]  # fmt: skip


@pytest.mark.parametrize("puffin", [False, True])
def test_rows_of_position_deletes_are_left_out(tmp_path: Path, *, puffin: bool) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(*range(8)))
    table.append(numbered(8, 9))
    paths = {part.commit: part.path for part in pinned(tmp_path).parts()}
    delete_positions(table, {paths[1]: [0, 3, 7], paths[2]: [1]}, puffin=puffin)
    source = pinned(tmp_path)
    assert [row["n"] for row in all_rows(source)] == [1, 2, 4, 5, 6, 8]
    assert places(source) == [(1, True), (2, True)]


def test_equality_deletes_are_refused_by_name(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    (file,) = live_files(table)
    delete_positions(table, {file.file_path: [0]}, equality=True)
    with pytest.raises(UnsupportedError, match="equality deletes"):
        pinned(tmp_path).parts()


def test_equality_deletes_that_a_snapshot_counts_are_refused_at_the_first_look(
    tmp_path: Path,
) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    path = Path(table.metadata_location.removeprefix("file://"))
    told = path.read_text().replace('"total-equality-deletes":"0"', '"total-equality-deletes":"3"')
    path.write_text(told)
    with pytest.raises(UnsupportedError, match="equality deletes"):
        open_source(place(path)).pin()


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ({"file_format": FileFormat.ORC}, r"f\.data has the format orc"),
        ({"file_format": FileFormat.AVRO}, r"f\.data has the format avro"),
        ({"file_format": FileFormat.PARQUET, "key_metadata": b"k"}, r"f\.data is encrypted"),
    ],
)
def test_file_that_would_be_read_wrongly_is_refused_by_name(
    tmp_path: Path, told: dict[str, Any], names: str
) -> None:
    table = create(tmp_path, NUMBERS)
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path="f.data", partition=Record(), record_count=1,
        file_size_in_bytes=1, **told,
    )  # fmt: skip
    file.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    with pytest.raises(UnsupportedError, match=names):
        pinned(tmp_path).parts()


def test_snapshot_is_the_rows_and_columns_that_were_there_then(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    then = table.current_snapshot().snapshot_id
    with table.update_schema() as changes:
        changes.rename_column("n", "m")
        changes.add_column("more", StringType())
    assert all_rows(pinned(tmp_path)) == [{"k": 0, "m": 0, "more": None}]
    table.append(pa.table({"k": [1], "m": [1], "more": ["x"]}))
    assert all_rows(pinned(tmp_path, then)) == [{"k": 0, "n": 0}]
    table.manage_snapshots().create_tag(then, "first").commit()
    assert all_rows(pinned(tmp_path, "first")) == [{"k": 0, "n": 0}]
    source = pinned(tmp_path, str(then))
    assert all_rows(source, Comparison("n", "=", 0)) == [{"k": 0, "n": 0}]
    assert source.version == str(then)


def test_newest_metadata_file_of_a_folder_is_read(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    source = open_source(place(table.location())).pin()
    table.append(numbered(1))
    assert [row["n"] for row in all_rows(source)] == [0]
    assert [row["n"] for row in all_rows(open_source(place(table.location())).pin())] == [0, 1]
    named = open_source(place(table.metadata_location)).pin()
    assert [row["n"] for row in all_rows(named)] == [0, 1]


def test_hint_decides_between_metadata_files_of_one_number(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    folder = Path(table.location().removeprefix("file://"))
    newest = Path(table.metadata_location.removeprefix("file://"))
    (newest.parent / (newest.name.split("-")[0] + "-lost.metadata.json")).write_text("{}")
    with pytest.raises(DataError, match="several metadata files have the number 1"):
        open_source(place(folder)).pin()
    (newest.parent / "version-hint.text").write_text(newest.name)
    assert all_rows(open_source(place(folder)).pin()) == [{"k": 0, "n": 0}]


def test_table_without_a_snapshot_has_no_rows(tmp_path: Path) -> None:
    create(tmp_path, NUMBERS)
    source = pinned(tmp_path)
    assert source.schema == NUMBERS
    assert source.version is None
    assert source.parts() == []


def test_conditions_on_the_key_leave_files_out(tmp_path: Path) -> None:
    table = create(
        tmp_path, pa.schema([("k", pa.int64()), ("s", pa.string()), ("f", pa.float64())])
    )
    for k in range(4):
        table.append(pa.table({"k": [k, k + 10], "s": [f"s{k}", None], "f": [float("nan"), 1.0]}))
    source = pinned(tmp_path)
    assert len(source.parts(Comparison("k", "=", 12))) == 2
    assert len(source.parts(In("k", (0, 99)))) == 1
    assert len(source.parts(Or((Comparison("k", ">", 12), Comparison("s", "=", "s0"))))) == 2
    assert len(source.parts(And((Comparison("k", ">", 12), Not(Comparison("k", "=", 7)))))) == 1
    assert len(source.parts(IsNull("k"))) == 0
    assert len(source.parts(Not(IsNull("s")))) == 4
    assert len(source.parts(Comparison("f", ">", 5.0))) == 4  # NaN is larger, and in no bounds
    assert len(all_rows(source, Comparison("f", ">", 5.0))) == 4


def test_partition_leaves_files_out_and_gives_a_column_that_files_lack(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    table = catalog(tmp_path).create_table("n.t", schema, partition_spec=spec)
    table.append(pa.table({"k": [1, 2, 3], "p": ["x", "y", "x"]}))
    assert len(pinned(tmp_path).parts(Comparison("p", "=", "x"))) == 1
    for file in live_files(table):
        path = file.file_path.removeprefix("file://")
        pq.write_table(pq.read_table(path, partitioning=None).select(["k"]), path)
    rows = [{"k": 1, "p": "x"}, {"k": 2, "p": "y"}, {"k": 3, "p": "x"}]
    assert counted(all_rows(pinned(tmp_path))) == counted(rows)


def test_files_without_ids_are_read_by_the_mapping_of_names(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    pq.write_table(numbered(5).rename_columns(["key", "n"]), tmp_path / "f.parquet")
    with pytest.raises(DataError, match="its fields have no ids"):
        _with_file(table, tmp_path, None)
    mapping = [{"field-id": 1, "names": ["k", "key"]}, {"field-id": 2, "names": ["n"]}]
    assert _with_file(table, tmp_path, json.dumps(mapping)) == [{"k": 0, "n": 5}]


def _with_file(table: Any, folder: Path, mapping: str | None) -> list[Any]:
    """The rows when a file of the table is one without ids."""
    if table.current_snapshot() is None:
        table.append(numbered(1))
    (file,) = live_files(table)
    path = Path(file.file_path.removeprefix("file://"))
    path.write_bytes((folder / "f.parquet").read_bytes())
    if mapping is not None:
        with table.transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": mapping})
    return all_rows(pinned(folder))


def test_every_type_is_read_as_it_is(tmp_path: Path) -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 123456)
    rows = pa.table(
        {
            "i": pa.array([3, None], pa.int32()), "f": pa.array([0.5, None], pa.float32()),
            "g": [1.5, None], "b": [True, None], "s": ["ä", None], "y": [b"\x00\xff", None],
            "d": pa.array([date(2020, 2, 29), None], pa.date32()),
            "t": pa.array([at, None], pa.timestamp("us")),
            "z": pa.array([at.replace(tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
            "m": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)),
            "l": [[1, None], None], "st": [{"x": 1, "y": ["q"]}, None],
            "mp": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )  # fmt: skip
    create(tmp_path, rows.schema).append(rows)
    source = pinned(tmp_path)
    assert all_rows(source) == rows.to_pylist()
    assert source.schema.types[:10] == rows.schema.types[:10]


def test_column_of_a_type_that_tables_lack_is_refused_by_name(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "k", LongType()), NestedField(2, "at", TimeType()))
    catalog(tmp_path).create_table("n.t", schema)
    with pytest.raises(UnsupportedError, match=r"'at'.*time"):
        pinned(tmp_path)


def of_version(table: Any, version: int) -> PinnedIceberg:
    """The table as if its metadata were of another version of the format."""
    as_version(table, version)
    return open_source(place(table.metadata_location)).pin()


def test_newer_format_version_is_refused_by_name(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    with pytest.raises(UnsupportedError, match="4"):
        of_version(table, 4)


def test_deletion_vectors_of_format_version_3_are_read(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0, 1, 2))
    (file,) = live_files(table)
    delete_positions(table, {file.file_path: [1]}, puffin=True)
    assert [row["n"] for row in all_rows(of_version(table, 3))] == [0, 2]


def test_files_of_format_version_1_are_in_no_order(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS, **{"format-version": "1"})
    table.append(numbered(0))
    table.append(numbered(1))
    assert places(pinned(tmp_path)) == [(0, False), (0, False)]
    assert len(all_rows(pinned(tmp_path))) == 2


def test_no_table_or_snapshot_is_not_found(tmp_path: Path) -> None:
    catalog(tmp_path)
    with pytest.raises(NotFoundError, match=r"n\.t"):
        pinned(tmp_path)
    with pytest.raises(NotFoundError, match=re.escape(str(tmp_path))):
        open_source(place(tmp_path)).pin()
    with pytest.raises(NotFoundError, match="nothing"):
        open_source(place(tmp_path / "nothing.metadata.json")).pin()
    create(tmp_path, NUMBERS)
    for version in (7, "tomorrow"):
        with pytest.raises(NotFoundError, match=f"no snapshot, tag or branch {version}"):
            pinned(tmp_path, version)
    with pytest.raises(InvalidError, match="''"):
        pinned(tmp_path, "")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"speed": "high"}, "speed"),
        ({"catalog.uri": "x", "catalog.token": "s3cret"}, r"catalog\.token"),
        ({"catalog.warehouse": "w"}, r"catalog\.uri"),
        ({"catalog.uri": "postgresql://user:s3cret@host/db"}, r"catalog\.uri"),
        ({"catalog.uri": "sqlite:///x", "catalog.type": "glue"}, "glue"),
    ],
)
def test_options_that_are_not_known_or_secret_are_refused(
    options: dict[str, str], names: str
) -> None:
    with pytest.raises(InvalidError, match=names) as raised:
        open_source(place("n.t", options))
    assert "s3cret" not in str(raised.value)


def test_no_secret_is_shown(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    lake = open_store("s3://b/lake", KEYS)
    far = open_source(Place("s3://b/t", {}, lake))
    near = open_source(place(table.location()))
    assert dict(far.place.storage) == KEYS
    assert not any("s3cret" in text for text in (repr(far), repr(near.pin().parts())))


def test_missing_or_torn_file_is_named(tmp_path: Path) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0))
    (file,) = live_files(table)
    delete_positions(table, {file.file_path: [5]})
    source = pinned(tmp_path)
    (part,) = source.parts()
    deletes = Path(part.deletes[0][0].removeprefix("file://"))
    whole = deletes.read_bytes()
    deletes.unlink()
    with pytest.raises(DataError, match=deletes.name):
        rows_of(part, source.schema)
    deletes.write_bytes(whole)
    path = Path(part.path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=path.name):
        rows_of(part, source.schema)


@pytest.mark.parametrize("place_of_damage", [0, 14])
def test_damaged_deletion_vector_is_named(tmp_path: Path, place_of_damage: int) -> None:
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0, 1, 2))
    (file,) = live_files(table)
    delete_positions(table, {file.file_path: [1]}, puffin=True)
    (part,) = pinned(tmp_path).parts()
    vector = Path(part.deletes[0][0].removeprefix("file://"))
    damaged = bytearray(vector.read_bytes())
    damaged[place_of_damage] ^= 0xFF
    vector.write_bytes(damaged)
    with pytest.raises(DataError, match=vector.name):
        rows_of(part, NUMBERS)


def test_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path, NUMBERS)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(SetupError, match=r"keytide\[iceberg\]"):
        pinned(tmp_path)


@pytest.fixture
def rest_catalog(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A catalog that is asked by REST, of one table; and the tokens that it was shown."""
    table = create(tmp_path, NUMBERS)
    table.append(numbered(0, 1))
    path = Path(table.metadata_location.removeprefix("file://"))
    answers: dict[str, Any] = {
        "/v1/config": {"defaults": {}, "overrides": {}},
        "/v1/namespaces/n/tables/t": {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(path.read_text()),
            "config": {},
        },
    }
    tokens: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers.get("Authorization", ""))
            found = answers.get(self.path.partition("?")[0])
            missing = {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}}
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", tokens
    server.shutdown()
    thread.join()
    server.server_close()


def test_table_of_a_rest_catalog_is_read_and_its_token_is_shown_to_nobody_else(
    rest_catalog: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, tokens = rest_catalog
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__TOKEN", "s3cret")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it is read with the library
    source = open_source(place("n.t", {"catalog.uri": uri}))
    found = source.pin()
    assert [row["n"] for row in all_rows(found)] == [0, 1]
    assert tokens[-1] == "Bearer s3cret"
    shown = [repr(source), repr(found), *map(repr, found.parts())]
    with pytest.raises(NotFoundError, match=r"n\.other") as raised:
        open_source(place("n.other", {"catalog.uri": uri})).pin()
    travelling = [repr(pickle.dumps(each)) for each in (source, found, *found.parts())]
    assert not any("s3cret" in text for text in (*shown, *travelling, str(raised.value)))
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__S3__REGION", "of-the-executor")
    (part,) = pickle.loads(pickle.dumps(found.parts()))
    assert part.storage.io.properties["s3.region"] == "of-the-executor"


@pytest.mark.parametrize("turn", [1, -1])
def test_of_rows_of_a_commit_in_several_partitions_nobody_knows_the_later_one(
    tmp_path: Path, turn: int
) -> None:
    schema = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("v", pa.string())])
    table = create(tmp_path / "far", schema)
    with table.update_spec() as update:
        update.add_identity("v")
    texts = list("abcdef"[::turn])
    table.append(pa.table({"k": [1] * 6, "w": [1] * 6, "v": texts}, schema=schema))
    merged = kt.connect(tmp_path / "lake").create_external_table(
        "e", format="iceberg", location=table.metadata_location, primary_key=["k"],
        watermark_key=["w"],
    )  # fmt: skip
    assert merged.scan().to_pylist() == [{"k": 1, "w": 1, "v": "f"}]
