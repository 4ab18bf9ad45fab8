"""Change feeds through Structured Streaming: small feeds, every way a message can end."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from new_tables import fields_of
from table_rows import rows

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, name STRING, note STRING"


def change(op: str, lsn: int, before: Any = None, after: Any = None) -> str:
    return json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn}})


def row(key: int, name: str | None, note: str | None = "n") -> dict[str, Any]:
    return {"id": key, "name": name, "note": note}


class Feed:
    """A folder of messages, and the table that they go into."""

    def __init__(self, folder: Path, spark: Any, options: dict[str, str]) -> None:
        self.folder, self.spark, self.options = folder, spark, options
        self.warehouse = str(folder / "warehouse")
        (folder / "feed").mkdir()

    def add(self, name: str, *messages: str | bytes) -> None:
        lines = [m if isinstance(m, bytes) else m.encode() for m in messages]
        data = b"".join(line + b"\n" for line in lines)
        (self.folder / "feed" / name).write_bytes(gzip.compress(data) if ".gz" in name else data)

    def run(self, checkpoint: str = "first", **overrides: Any) -> Any:
        return kt.connect(self.warehouse, spark=self.spark).ingest(
            **{
                "table": "shop.people",
                "source": str(self.folder / "feed"),
                "format": "debezium-json",
                "schema": COLUMNS,
                "primary_key": ["id"],
                "checkpoint": str(self.folder / checkpoint),
                "options": self.options,
                # A key index compares several sequence fields as clocks of several producers.
                "sequence_by": ["source.lsn"] if self.options else [],
                **overrides,
            }
        )

    def rows(self, table: str = "shop.people", *columns: str) -> list[tuple[Any, ...]]:
        scan = kt.connect(self.warehouse).table(table).scan(columns=columns or ("id", "name"))
        return rows(scan)


@pytest.fixture
def feed(tmp_path: Path, spark: Any, request: pytest.FixtureRequest) -> Feed:
    return Feed(tmp_path, spark, getattr(request, "param", {}))


into_both_kinds = pytest.mark.parametrize(
    "feed", [{}, {"upsert.mode": "full"}], ids=["merging", "indexed"], indirect=True
)


def counts(report: Any) -> tuple[int, ...]:
    (batch,) = report.batches
    return (
        batch.rows_in,
        batch.applied,
        batch.late,
        batch.duplicate,
        batch.rejected,
        batch.skipped,
    )


def test_changes_in_any_order_end_in_the_rows_of_the_source(feed: Feed, place: str) -> None:
    feed.add(
        "a.json",
        change("u", 30, row(1, "old"), row(1, "new")),
        change("c", 10, None, row(1, "old")),
        change("c", 20, None, row(2, "gone")),
        change("d", 40, row(2, "gone"), None),
        change("c", 50, None, row(3, "stays")),
    )

    assert counts(feed.run()) == (5, 4, 1, 0, 0, 0)
    assert feed.rows() == [(1, "new"), (3, "stays")]


FEEDS = Path(__file__).parent.parent / "data" / "cdc"


def met(lines: list[bytes], key: str) -> tuple[int, int, int]:
    """How many changes are applied, late and repeated, where they come in this order."""
    seen: dict[Any, set[int]] = {}
    verdicts = Counter[str]()
    for change in map(json.loads, lines):
        lsns = seen.setdefault((change["after"] or change["before"])[key], set())
        lsn = change["source"]["lsn"]
        is_newest = not lsns or lsn > max(lsns)
        verdicts["applied" if is_newest else "duplicate" if lsn in lsns else "late"] += 1
        lsns.add(lsn)
    return verdicts["applied"], verdicts["late"], verdicts["duplicate"]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("files", ["growing", "shrinking", "in pieces"])
def test_real_feed_is_met_in_its_order_however_it_lies_in_the_files_of_a_batch(
    feed: Feed, files: str
) -> None:
    data = gzip.decompress((FEEDS / "orders" / "changes.jsonl.gz").read_bytes())
    lines = data.splitlines()[700:1500]  # behind the rows that were there before
    ends = [0, 10, 30, 60, 100, 150, 210, 280, 360, 470, 600, len(lines)]
    if files == "shrinking":
        ends = [len(lines) - end for end in reversed(ends)]
    for number, (start, end) in enumerate(pairwise(ends)):
        name = f"changes-{number}.json{'.gz' if number % 3 and files != 'in pieces' else ''}"
        feed.add(name, *lines[start:end])
        # Some have the same time, and their names tell.
        os.utime(feed.folder / "feed" / name, (1_700_000_000 + number // 4,) * 2)

    with pieces_of(feed.spark, "40kb" if files == "in pieces" else "128mb"):
        found = feed.run(table="shop.orders", primary_key=["order_id"], schema=None)
    assert counts(found) == (len(lines), *met(lines, "order_id"), 0, 0)


@contextmanager
def pieces_of(spark: Any, size: str) -> Iterator[None]:
    """Files are read in pieces of at most this size."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", size)
    yield
    spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_message_is_late_in_a_batch_where_an_earlier_file_overtook_it(feed: Feed) -> None:
    feed.add("a.json", change("c", 1, None, row(1, "a")), change("c", 2, None, row(2, "a")))
    feed.add("b.json", change("u", 9, row(1, "a"), row(1, "b")))
    for name, written in (("a.json", 1_700_000_009), ("b.json", 1_700_000_001)):
        os.utime(feed.folder / "feed" / name, (written, written))

    assert counts(feed.run()) == (3, 2, 1, 0, 0, 0)
    assert feed.rows() == [(1, "b"), (2, "a")]


@pytest.mark.takes_turns
def test_a_second_run_with_the_same_checkpoint_does_nothing(feed: Feed) -> None:
    feed.add("a.json", change("c", 1, None, row(1, "a")))
    feed.run()
    before = kt.connect(feed.warehouse).table("shop.people").snapshots()

    assert feed.run().batches == ()
    assert kt.connect(feed.warehouse).table("shop.people").snapshots() == before


@pytest.mark.one_in(14)
@into_both_kinds
def test_a_feed_delivered_again_is_late_or_duplicate_and_changes_nothing(feed: Feed) -> None:
    feed.add("a.json", change("c", 1, None, row(1, "a")), change("u", 2, row(1, "a"), row(1, "b")))
    feed.run()

    assert counts(feed.run("second")) == (2, 0, 1, 1, 0, 0)
    assert feed.rows() == [(1, "b")]


@pytest.mark.one_in(14)
@into_both_kinds
def test_a_deleted_row_does_not_come_back_with_a_late_change(feed: Feed) -> None:
    feed.add("a.json", change("c", 1, None, row(1, "a")), change("d", 9, row(1, "a"), None))
    feed.run()
    feed.add("b.json", change("u", 5, row(1, "a"), row(1, "late")))

    assert counts(feed.run()) == (1, 0, 1, 0, 0, 0)
    assert feed.rows() == []


@pytest.mark.takes_turns
def test_malformed_and_unfit_messages_go_to_the_dead_letter_table_with_the_reason(
    feed: Feed, place: str
) -> None:
    feed.add(
        "a.json",
        change("c", 1, None, row(1, "a")),
        "{ this is no JSON",
        change("x", 2, None, row(2, "b")),
        change("c", 3, None, {"id": "many", "name": "c", "note": None}),
        "null",
    )

    report = feed.run()

    assert counts(report) == (5, 1, 0, 0, 3, 1)
    assert feed.rows() == [(1, "a")]
    letters = feed.rows(report.dead_letter, "raw", "reason")
    assert [raw for raw, _ in letters if b"this is no JSON" in raw]
    assert all(reason for _, reason in letters)
    assert any("id" in reason and "BIGINT" in reason for _, reason in letters)


@pytest.mark.takes_turns
def test_changes_that_the_table_could_not_merge_are_dead_letters_too(feed: Feed) -> None:
    delete = change("d", 2, row(1, "a"), None)
    feed.add("a.json", change("c", 1, None, row(1, "a")), delete, change("c", 3, None, row(2, "b")))
    options = {"merge-engine": "aggregation", "fields.name.aggregate-function": "max"}

    report = feed.run(options=options)

    assert counts(report) == (3, 2, 0, 0, 1, 0)
    assert feed.rows() == [(1, "a"), (2, "b")]
    [(raw, reason)] = feed.rows(report.dead_letter, "raw", "reason")
    assert raw == delete.encode()
    assert "'max' cannot retract values" in reason


@pytest.mark.takes_turns
def test_rows_that_pinot_counts_as_errors_are_dead_letters(feed: Feed) -> None:
    columns = [{"name": name, "dataType": "LONG"} for name in ("id", "a", "b")]
    config = {
        "tableName": "shop.people",
        "tableType": "REALTIME",
        "routing": {"instanceSelectorType": "strictReplicaGroup"},
        "upsertConfig": {"mode": "FULL", "comparisonColumns": ["a", "b"]},
    }
    schema = {"schemaName": "s", "primaryKeyColumns": ["id"], "dimensionFieldSpecs": columns}
    kt.pinot.create_table(kt.connect(feed.warehouse), config, schema)
    images = [{"id": 1, "a": 2}, {"id": 1, "b": 1}, {"id": 1, "a": 1}, {"id": 1},
              {"id": 2, "a": 1, "b": 1}, {"id": None, "a": 1}]  # fmt: skip
    feed.add("a.json", *(json.dumps({"op": "c", "after": image}) for image in images))

    report = feed.run(schema=None, options={})

    assert counts(report) == (6, 2, 1, 0, 3, 0)
    assert feed.rows("shop.people", "id", "a", "b") == [(1, 2, 1)]
    reasons = [reason for (reason,) in feed.rows(report.dead_letter, "reason")]
    assert [reason.split(" ")[0] for reason in reasons] == ["all", "column", "several"]


@pytest.mark.takes_turns
def test_any_bytes_between_good_messages_are_dead_letters_byte_for_byte(feed: Feed) -> None:
    chance = random.Random(7)
    pieces = [b"\xff", b"\xed\xa0\x80", b"\0", b"\r", b"\xef\xbb\xbf", b"{", b'"', b"x", b"\\ud800"]
    garbage = [b"".join(chance.choices(pieces, k=chance.randint(1, 9))) for _ in range(150)]
    garbage += [chance.randbytes(40).replace(b"\n", b"") for _ in range(50)]
    good = [change("c", key, None, row(key, "ü")).encode() + b"\r" for key in range(200)]
    mixed = good + garbage
    chance.shuffle(mixed)
    feed.add("a.json", b"first", *mixed[:300])
    feed.add("b.json.gz", b"first", *mixed[300:])

    report = feed.run()

    assert (report.rows_in, report.applied, report.rejected) == (402, 200, 202)
    assert feed.rows() == [(key, "ü") for key in range(200)]
    assert {raw for (raw,) in feed.rows(report.dead_letter, "raw")} == {b"first", *garbage}


def test_batch_that_is_repeated_and_refuses_other_messages_keeps_all_of_them(feed: Feed) -> None:
    from keytide.spark.ingest import DeadLetters

    catalog = kt.connect(feed.warehouse)._catalog
    letters = DeadLetters(catalog, "shop.bad", "shop.people")
    for refused in ([b"1", b"2"], [b"2", b"3"]):
        rows = [(bytearray(raw), "because") for raw in refused]
        letters.keep(feed.spark.createDataFrame(rows, "raw binary, reason string"), batch_id=4)
    assert feed.rows("shop.bad", "raw", "batch_id") == [(b"1", 4), (b"2", 4), (b"3", 4)]


@pytest.mark.takes_turns
def test_dead_letter_table_of_text_takes_other_bytes_as_digits(feed: Feed) -> None:
    types = {"digest": "STRING", "reason": "STRING", "raw": "STRING", "batch_id": "BIGINT"}
    fields = fields_of(types)
    kt.connect(feed.warehouse).create_table("shop.bad", fields, ["digest"])
    feed.add("a.json", "text", b"\xffbytes")

    assert feed.run(dead_letter="shop.bad").rejected == 2
    assert feed.rows("shop.bad", "raw", "reason") == [
        ("\\xff6279746573", "not UTF-8 text"),
        ("text", "not valid JSON"),
    ]


def test_table_that_cannot_take_dead_letters_is_refused_before_anything_is_read(feed: Feed) -> None:
    fields = kt.parse_sql_type("ROW<digest STRING, raw BIGINT>").fields
    kt.connect(feed.warehouse).create_table("shop.bad", fields, ["digest"])
    feed.add("a.json", change("c", 1, None, row(1, "a")))

    with pytest.raises(kt.InvalidError, match=r"shop\.bad cannot store dead letters"):
        feed.run(dead_letter="shop.bad")
    assert kt.connect(feed.warehouse).table("shop.people").snapshots() == []


@pytest.mark.takes_turns
def test_file_that_was_cut_short_is_named_and_goes_in_when_it_is_whole(feed: Feed) -> None:
    feed.add("a.json.gz", *(change("c", key, None, row(key, "a")) for key in range(500)))
    path = feed.folder / "feed" / "a.json.gz"
    whole = path.read_bytes()
    feed.run(primary_key=["id"])
    path.with_name("b.json.gz").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(kt.DataError, match=r"b\.json\.gz cannot be read \(Unexpected end"):
        feed.run()
    path.with_name("b.json.gz").write_bytes(whole)
    assert counts(feed.run()) == (500, 0, 0, 500, 0, 0)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("source", ["feed", "feed/", "feed/1.json", "feed/*.json", "feed/[1].json"])
def test_source_is_a_folder_a_file_or_a_glob(feed: Feed, source: str) -> None:
    feed.add("1.json", change("c", 1, None, row(1, "Ada")))
    assert counts(feed.run(source=f"{feed.folder}/{source}")) == (1, 1, 0, 0, 0, 0)
    assert feed.rows() == [(1, "Ada")]


def test_feed_that_is_not_there_is_said(feed: Feed) -> None:
    with pytest.raises(kt.NotFoundError, match="no file or folder"):
        feed.run(source=str(feed.folder / "nowhere"))


@pytest.mark.takes_turns
@into_both_kinds
def test_a_key_change_moves_the_row_and_counts_once(feed: Feed) -> None:
    feed.add("a.json", change("c", 1, None, row(1, "a")), change("u", 2, row(1, "a"), row(7, "a")))

    assert counts(feed.run()) == (2, 2, 0, 0, 0, 0)
    assert feed.rows() == [(7, "a")]


@pytest.mark.one_in(14)
@into_both_kinds
@pytest.mark.parametrize(
    ("type", "first", "again"), [("BIGINT", 1, 1), ("CHAR(9)", "x", "x  "), ("DOUBLE", 0.0, -0.0)]
)
def test_a_value_that_the_source_left_out_keeps_what_the_key_has(
    feed: Feed, type: str, first: Any, again: Any
) -> None:
    schema = f"id {type}, name STRING, note STRING"
    options = {"schema": schema, "options": {"bucket": "5", **feed.options}}
    feed.add("a.json", change("c", 1, None, {"id": first, "name": "a", "note": "large"}))
    feed.run(**options)
    left_out = {"id": again, "name": "b", "note": "__debezium_unavailable_value"}
    feed.add("b.json", change("u", 2, None, left_out))

    feed.run(**options)

    assert feed.rows("shop.people", "id", "name", "note") == [(first, "b", "large")]


@pytest.mark.takes_turns
@pytest.mark.parametrize("type", ["STRING", "BYTES"])
def test_a_left_out_value_is_null_until_its_version_arrives(feed: Feed, type: str) -> None:
    left_out = {"id": 1, "name": "b", "note": "__debezium_unavailable_value"}
    message = change("u", 2, None, left_out)
    feed.add("a.json", message)

    report = feed.run(schema=f"id BIGINT, name STRING, note {type}")

    assert counts(report) == (1, 1, 0, 0, 0, 0)
    assert feed.rows("shop.people", "id", "name", "note") == [(1, "b", None)]


@pytest.mark.takes_turns
def test_without_a_schema_the_table_is_made_from_the_feed(feed: Feed) -> None:
    feed.add("a.json", change("c", 1, None, {"id": 1, "since": "2026-01-31", "ok": True}))

    feed.run(schema=None)

    table = kt.connect(feed.warehouse).table("shop.people")
    types = {f.name: f.type.with_nullable(True).sql() for f in table.table_schema.fields}
    assert types == {
        "id": "BIGINT", "since": "DATE", "ok": "BOOLEAN",
        "_epoch": "INT", "_commit_lsn": "BIGINT", "_lsn": "BIGINT",
    }  # fmt: skip
    assert table.options["sequence.field"] == "_epoch,_commit_lsn,_lsn"


@pytest.mark.takes_turns
def test_an_existing_table_orders_by_the_members_named(feed: Feed) -> None:
    fields = kt.parse_sql_type("ROW<id BIGINT, name STRING, note STRING, version BIGINT>").fields
    kt.connect(feed.warehouse).create_table(
        "shop.people", fields, ["id"], options={"sequence.field": "version", "bucket": "3"}
    )
    feed.add("a.json", *(change("c", 10 - key, None, row(key % 4, f"{key}")) for key in range(8)))

    feed.run(sequence_by=["source.lsn"])

    assert feed.rows() == [(0, "0"), (1, "1"), (2, "2"), (3, "3")]


def test_a_feed_without_a_key_is_refused_with_the_way_out(feed: Feed) -> None:
    feed.add("a.json", change("c", 1, None, row(1, "a")))

    with pytest.raises(kt.InvalidError, match="primary key"):
        feed.run(primary_key=[])


@pytest.mark.takes_turns
def test_maxwell_and_canal_feeds_arrive_too(feed: Feed) -> None:
    feed.add(
        "a.json",
        json.dumps(
            {
                "type": "insert", "ts": 1, "xid": 1, "xoffset": 0,
                "position": "mysql-bin.000001:100", "data": {"id": 1, "name": "m"},
            }
        ),
        json.dumps(
            {
                "type": "update", "ts": 2, "xid": 2, "xoffset": 0,
                "position": "mysql-bin.000001:200",
                "data": {"id": 1, "name": "maxwell"}, "old": {"name": "m"},
            }
        ),
    )  # fmt: skip
    feed.run(format="maxwell-json", schema="id BIGINT, name STRING")

    assert feed.rows() == [(1, "maxwell")]


@pytest.mark.takes_turns
def test_a_table_grows_with_the_columns_that_a_feed_brings_later(
    tmp_path: Path, spark: Any
) -> None:
    feed = Feed(tmp_path, spark, {})
    feed.add("1.json", change("c", 1, after=row(1, "a")))
    feed.run(merge_schema=True)
    later = {**row(1, "b"), "age": 1 << 40, "city": "Oslo"}
    feed.add(
        "2.json", change("u", 2, after=later), change("c", 3, after={**row(2, "c"), "age": 1.5})
    )
    feed.add("3.json", change("c", 4, after={**row(3, "d"), "other": None}))
    feed.run(merge_schema=True)
    feed.add("4.json", change("c", 5, after={**row(4, "e"), "left": "out"}))
    feed.run()
    table = kt.connect(feed.warehouse).table("shop.people")
    found = {r["id"]: (r["name"], r["age"], r["city"]) for r in table.scan().to_pylist()}
    assert found == {
        1: ("b", float(1 << 40), "Oslo"), 2: ("c", 1.5, None), 3: ("d", None, None),
        4: ("e", None, None),
    }  # fmt: skip
    order = ["_commit_lsn", "_epoch", "_lsn"]
    assert sorted(table.schema.names) == [*order, "age", "city", "id", "name", "note"]
