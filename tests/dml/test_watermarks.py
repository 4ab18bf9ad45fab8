"""What UPDATE, DELETE and MERGE store in a watermark key: 'upsert.dml-watermark'."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.dml.keyed_table import KeyedMetadata

BEGAN = datetime(2026, 5, 4, 3, 2, 1, 987654, UTC)
EARLIER, LATER = (BEGAN.replace(microsecond=0) + timedelta(days=days) for days in (-1, 1))


@pytest.fixture
def lake(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> kt.Lake:
    began_ns = int(BEGAN.timestamp()) * 10**9 + 987_654_321
    made = KeyedMetadata.__init__

    def at_that_time(self: KeyedMetadata, catalog: Any) -> None:
        made(self, catalog, lambda: began_ns)

    monkeypatch.setattr(KeyedMetadata, "__init__", at_that_time)
    return kt.connect(warehouse)


def table(lake: kt.Lake, policy: str, type_: str = "TIMESTAMP_LTZ(6)", more: str = "") -> kt.Table:
    lake.sql(
        f"CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, v INT, w {type_}) "
        f"WITH ('watermark.key' = 'w', 'upsert.dml-watermark' = '{policy}'{more})"
    )
    t = lake.table("t")
    zone = None if type_.startswith("TIMESTAMP(") else UTC
    for k, w in enumerate((EARLIER, LATER, None)):
        t.write([{"k": k, "v": k, "w": w and w.replace(tzinfo=zone)}])
    return t


def watermarks(t: kt.Table) -> dict[int, Any]:
    return {row["k"]: row["w"] for row in t.scan().to_arrow().to_pylist()}


CHANGES = {
    "update": lambda t: t.update({"v": "v + 1"}),
    "moving update": lambda t: t.update({"k": "k + 10"}),
    "merge": lambda t: t.merge([{"k": k} for k in range(3)], "target.k = source.k")
    .when_matched_update({"v": 7}).execute(),
}  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("policy", ["copy", "statement-time"])
def test_new_images_have_the_watermark_of_their_row_or_a_later_time(
    lake: kt.Lake, policy: str, change: str
) -> None:
    t = table(lake, policy)
    assert CHANGES[change](t).rows == 3
    is_copied = policy == "copy"
    expected = [EARLIER if is_copied else BEGAN, LATER, None if is_copied else BEGAN]
    moved = 10 if change == "moving update" else 0
    assert watermarks(t) == {k + moved: w for k, w in enumerate(expected)}


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("TIMESTAMP_LTZ(3)", BEGAN.replace(microsecond=987_000)),
        ("TIMESTAMP(0)", BEGAN.replace(microsecond=0, tzinfo=None)),
        ("TIMESTAMP(6)", BEGAN.replace(tzinfo=None)),
    ],
)
def test_time_has_the_digits_of_its_column(lake: kt.Lake, type_: str, expected: datetime) -> None:
    t = table(lake, "statement-time", type_)
    t.update({"v": 5}, "k = 0")
    assert watermarks(t)[0] == expected


@pytest.mark.parametrize("gone", ["DELETE FROM t WHERE k = 0", "UPDATE t SET k = 9 WHERE k = 0"])
@pytest.mark.parametrize(("policy", "comes_back"), [("copy", True), ("statement-time", False)])
def test_delete_holds_against_events_from_before_its_statement(
    lake: kt.Lake, policy: str, gone: str, comes_back: bool
) -> None:
    t = table(lake, policy)
    lake.sql(gone)
    t.write([{"k": 0, "v": 0, "w": BEGAN - timedelta(seconds=1)}])
    assert (0 in watermarks(t)) is comes_back
    t.write([{"k": 0, "v": 0, "w": BEGAN + timedelta(seconds=1)}])
    assert 0 in watermarks(t)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("policy", ["copy", "statement-time", "explicit"])
def test_what_a_statement_sets_counts_unless_it_is_older(lake: kt.Lake, policy: str) -> None:
    t = table(lake, policy)
    early = EARLIER + timedelta(hours=1)
    assert t.update({"w": early}, "k = 0").rows == 1
    assert watermarks(t)[0] == early
    with pytest.raises(kt.InvalidError, match="older than the stored value"):
        t.update({"w": EARLIER}, "k = 0")
    # It is under this time that the row has left its key.
    t.update({"k": 5, "w": BEGAN}, "k = 0")
    t.write([{"k": 0, "v": 0, "w": early}])
    assert watermarks(t) == {1: LATER, 2: None, 5: BEGAN}


def test_each_when_of_a_merge_sets_its_own(lake: kt.Lake) -> None:
    t = table(lake, "statement-time")
    source = [{"k": k, "w": BEGAN - timedelta(hours=1)} for k in (0, 2, 8)]
    merge = t.merge(source, "target.k = source.k").when_matched_update({"w": "source.w"}, "v = 0")
    merge = merge.when_matched_update({"v": 9})
    merge.when_not_matched_insert({"k": "source.k", "w": "source.w"}).execute()
    hour = BEGAN - timedelta(hours=1)
    assert watermarks(t) == {0: hour, 1: LATER, 2: BEGAN, 8: hour}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE t SET v = 1", kt.InvalidError),
        ("DELETE FROM t", kt.UnsupportedError),
        ("DELETE FROM t WHERE k = 0", kt.UnsupportedError),
        ("MERGE INTO t USING t s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = 1", kt.InvalidError),
        ("MERGE INTO t USING t s ON t.k = s.k WHEN MATCHED THEN DELETE", kt.UnsupportedError),
        (
            "MERGE INTO t USING t s ON t.k = s.k WHEN MATCHED AND s.k = 0 THEN UPDATE SET w = s.w "
            "WHEN MATCHED THEN UPDATE SET v = 1",
            kt.InvalidError,
        ),
    ],
)
def test_explicit_watermark_has_to_be_set(
    lake: kt.Lake, statement: str, kind: type[Exception]
) -> None:
    t = table(lake, "explicit")
    before = t.scan().to_arrow()
    with pytest.raises(kind, match=r"'upsert\.dml-watermark' is 'explicit'.*'w'"):
        lake.sql(statement)
    assert t.scan().to_arrow() == before
    assert lake.sql("MERGE INTO t USING t s ON t.k = s.k AND t.w = s.w WHEN MATCHED THEN UPDATE "
                    "SET w = s.w, v = 5").row_count == 2  # fmt: skip


def test_tombstone_column_deletes_with_an_explicit_watermark(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE d (k INT PRIMARY KEY NOT ENFORCED, w INT, gone BOOLEAN) WITH ("
        "'watermark.key' = 'w', 'tombstone.key' = 'gone', 'upsert.dml-watermark' = 'explicit'); "
        "INSERT INTO d (k, w) VALUES (1, 1), (2, 1); UPDATE d SET gone = TRUE, w = 5 WHERE k = 1; "
        "INSERT INTO d (k, w) VALUES (1, 4), (2, 2)"
    )
    assert lake.sql("SELECT k, w FROM d").to_pylist() == [{"k": 2, "w": 2}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'upsert.dml-watermark' = 'now', 'watermark.key' = 'w'", "copy.*statement-time.*explicit"),
        ("'upsert.dml-watermark' = 'explicit'", r"requires a 'watermark\.key'"),
        ("'upsert.dml-watermark' = 'statement-time'", r"requires a 'watermark\.key'"),
        (
            "'upsert.dml-watermark' = 'statement-time', 'watermark.key' = 'v'",
            "requires one TIMESTAMP or TIMESTAMP_LTZ column.*v INT",
        ),
        (
            "'upsert.dml-watermark' = 'statement-time', 'watermark.key' = 'w,x'",
            r"requires one TIMESTAMP.*w TIMESTAMP\(6\), x TIMESTAMP\(6\)",
        ),
        (
            "'upsert.dml-watermark' = 'statement-time', 'watermark.key' = 'w', "
            "'sequence.field.sort-order' = 'descending'",
            "'descending'",
        ),
    ],
)
def test_policy_that_means_nothing_is_refused(lake: kt.Lake, options: str, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        lake.sql(
            f"CREATE TABLE n (k INT PRIMARY KEY NOT ENFORCED, v INT, w TIMESTAMP(6), "
            f"x TIMESTAMP(6)) WITH ({options})"
        )


def test_policy_may_change_at_any_time(lake: kt.Lake) -> None:
    t = table(lake, "copy")
    lake.sql("ALTER TABLE t SET ('upsert.dml-watermark' = 'statement-time')")
    lake.sql("UPDATE t SET v = 1 WHERE k = 0")
    assert watermarks(lake.table("t"))[0] == BEGAN
    assert watermarks(t)[1] == LATER


@pytest.mark.takes_turns
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    stamps=st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=2, max_size=4),
    moves=st.permutations(range(4)),
    options=st.sampled_from(
        [{}, {"bucket": "2"}, {"sequence.field.sort-order": "descending"}, {"upsert.mode": "full"}]
    ),
    merges=st.booleans(),
    tombstones=st.dictionaries(st.integers(0, 3), st.integers(0, 3), max_size=2),
)
def test_rows_that_change_their_keys_are_all_seen_or_the_statement_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    stamps: list[int | None],
    moves: list[int],
    options: dict[str, str],
    merges: bool,
    tombstones: dict[int, int],
) -> None:
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    order = "sequence.field" if "descending" in options.values() else "watermark.key"
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("w", pa.int64())])
    t = lake.create_table("t", schema, ["k"], options={order: "w", **options})
    t.write([{"k": k, "n": k, "w": w} for k, w in enumerate(stamps)])
    deleted = {k: w for k, w in tombstones.items() if k >= len(stamps)}
    t.write([{"k": k, "n": None, "w": w, "_row_kind": "-D"} for k, w in deleted.items()])
    target = dict(enumerate(moves[: len(stamps)]))
    to = "CASE k " + " ".join(f"WHEN {k} THEN {m}" for k, m in target.items()) + " END"
    statement = f"UPDATE t SET k = {to}"
    if merges:
        statement = (
            f"MERGE INTO t USING (SELECT k AS s FROM t) AS x ON t.k = x.s "
            f"WHEN MATCHED THEN UPDATE SET k = {to.replace('CASE k', 'CASE t.k')}"
        )
    descends = order == "sequence.field"
    stored = {**dict(enumerate(stamps)), **deleted}
    fresh = {k: -1 if w is None else 3 - w if descends else w for k, w in stored.items()}
    taken = {k: m for k, m in target.items() if m != k and m in fresh}
    if any(fresh[k] < fresh[m] for k, m in taken.items()):
        with pytest.raises(kt.InvalidError, match=r"newer row is deleted|was deleted at a later"):
            lake.sql(statement)
        target = {k: k for k in target}
    else:
        lake.sql(statement)
    rows = {row["k"]: row["n"] for row in t.scan().to_pylist()}
    assert rows == {target[n]: n for n in range(len(stamps))}
