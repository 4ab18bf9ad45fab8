from __future__ import annotations

from typing import Any

from feeds import batch, decoded, feed, lines, ordered_feed
from keytide.cdc import default_sequence
from keytide.types import AtomicType

MAXWELL = feed("maxwell-json", "id INT; v STRING")
CANAL = feed("canal-json", "id INT; v STRING")
DMS = feed("dms-json", "id INT; v STRING")


def maxwell(type: str, data: Any = None, old: Any = None, **more: Any) -> dict[str, Any]:
    return {"database": "d", "table": "t", "type": type, "data": data, "old": old, **more}


def canal(type: str, data: Any = None, old: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": type, "data": data, "old": old, "isDdl": False, "es": 5, "id": 1, **more}


def dms(operation: str, data: Any = None, **more: Any) -> dict[str, Any]:
    kind = "data" if data is not None else "control"
    metadata = {"timestamp": "2026-01-02T03:04:05.6Z", "record-type": kind, "operation": operation}
    return {"data": data, "metadata": metadata, **more}


def test_maxwell_rows_come_from_data_and_the_old_key_from_old() -> None:
    assert lines(
        MAXWELL,
        maxwell("bootstrap-insert", {"id": 1, "v": "a"}),
        maxwell("insert", {"id": 2, "v": "a"}),
        maxwell("update", {"id": 1, "v": "b"}, {"v": "a"}),
        maxwell("update", {"id": 3, "v": "b"}, {"id": 1}),
        maxwell("delete", {"id": 3, "v": "b"}),
    ) == [
        "0 +I id=1 v=a",
        "1 +I id=2 v=a",
        "2 +U id=1 v=b",
        "3 -D id=1 v=b",
        "3 +I id=3 v=b",
        "4 -D id=3 v=b",
    ]


def test_maxwell_before_image_is_completed_from_data_and_null_stays_null() -> None:
    spec = feed("maxwell-json", "id INT; v STRING; w INT", before_images=True)
    update = maxwell("update", {"id": 1, "v": "b", "w": 5}, {"v": None})
    assert lines(spec, update) == ["0 -U id=1 v=None w=5", "0 +U id=1 v=b w=5"]


def test_maxwell_bootstrap_marks_and_ddl_are_control() -> None:
    marks = [
        maxwell("bootstrap-start", {}),
        maxwell("bootstrap-complete", {}),
        maxwell("table-alter"),
    ]
    result = decoded(MAXWELL, *marks)
    assert (result.control, result.rows.num_rows, result.rejected.num_rows) == (3, 0, 0)


def test_maxwell_orders_by_binlog_position_where_it_is_written() -> None:
    message = maxwell("insert", {"id": 1}, ts=1, xid=2, position="master.000006:800911", xoffset=3)
    sources = default_sequence(batch([message]), "maxwell-json")
    assert lines(ordered_feed("maxwell-json", "id INT", *sources), message) == [
        "0 +I id=1 _epoch=1 _file=6 _position=800911 _xoffset=3"
    ]


def test_maxwell_row_that_commits_is_the_last_of_its_transaction() -> None:
    first = maxwell("insert", {"id": 1}, ts=1, xid=2, xoffset=0, position="b.000001:7")
    last = maxwell("delete", {"id": 1}, ts=1, xid=2, commit=True, position="b.000001:7")
    spec = ordered_feed("maxwell-json", "id INT", *default_sequence(batch([first]), "maxwell-json"))
    rows = decoded(spec, first, last).rows
    assert rows.select(["_file", "_position"]).to_pylist() == [{"_file": 1, "_position": 7}] * 2
    assert rows["_xoffset"].to_pylist() == [0, 2**63 - 1]


def test_canal_message_unfolds_into_its_rows() -> None:
    assert lines(
        CANAL,
        canal("INSERT", [{"id": "1", "v": "a"}, {"id": "2", "v": None}]),
        canal("UPDATE", [{"id": "1", "v": "b"}, {"id": "3", "v": "c"}], [{"v": "a"}, {"id": "2"}]),
        canal("DELETE", [{"id": "1", "v": "b"}]),
    ) == [
        "0 +I id=1 v=a",
        "0 +I id=2 v=None",
        "1 +U id=1 v=b",
        "1 -D id=2 v=c",
        "1 +I id=3 v=c",
        "2 -D id=1 v=b",
    ]


def test_canal_message_with_one_bad_row_is_rejected_whole() -> None:
    message = canal("INSERT", [{"id": "1", "v": "a"}, {"id": "x", "v": "b"}])
    assert lines(CANAL, message) == ["0 ! column id: found 'x', expected INT"]


def test_canal_message_without_rows_is_rejected() -> None:
    assert lines(CANAL, canal("INSERT", []), canal("DELETE", None), canal("INSERT", [5])) == [
        "0 ! insert without an after image",
        "1 ! delete without a before image",
        "2 ! insert without an after image",
    ]


def test_canal_ddl_is_control_and_truncate_is_rejected() -> None:
    result = decoded(CANAL, canal("ALTER", isDdl=True), canal("TRUNCATE", isDdl=True))
    assert result.control == 1
    assert result.rejected["ordinal"].to_pylist() == [1]


def test_canal_text_becomes_typed_values() -> None:
    spec = feed("canal-json", "id BIGINT; a DECIMAL(12, 2); t TIMESTAMP(3); b BYTES; f BOOLEAN")
    row = {
        "id": "9007199254740993",
        "a": "1.50",
        "t": "2026-01-02 03:04:05",
        "b": "é\u0080",
        "f": "1",
    }
    assert lines(spec, canal("INSERT", [row])) == [
        "0 +I id=9007199254740993 a=1.50 t=2026-01-02 03:04:05 b=b'\\xe9\\x80' f=True"
    ]


def test_dms_stream_records_become_rows() -> None:
    assert lines(
        DMS,
        dms("load", {"id": 1, "v": "a"}),
        dms("insert", {"id": 2, "v": "a"}),
        dms("update", {"id": 1, "v": "b"}),
        dms("update", {"id": 3, "v": "b"}, **{"before-image": {"id": 1}}),
        dms("delete", {"id": 3, "v": None}),
    ) == [
        "0 +I id=1 v=a",
        "1 +I id=2 v=a",
        "2 +U id=1 v=b",
        "3 -D id=1 v=b",
        "3 +I id=3 v=b",
        "4 -D id=3 v=None",
    ]


def test_dms_control_changes_no_row_but_a_truncate_is_rejected() -> None:
    result = decoded(DMS, dms("create-table"), dms("add-column"), dms("truncate-table"))
    assert result.control == 2
    assert result.rejected["ordinal"].to_pylist() == [2]


def test_dms_flat_rows_take_their_operation_from_op() -> None:
    assert lines(
        DMS,
        {"Op": "I", "id": "1", "v": "a"},
        '\n {"Op": "U", "id": "1", "v": "b"}',
        {"Op": "D", "id": "1"},
        {"id": "1"},
        {"Op": "X", "id": "1"},
    ) == [
        "0 +I id=1 v=a",
        "1 +U id=1 v=b",
        "2 -D id=1 v=None",
        "3 +I id=1 v=None",
        '4 ! Op: found "X", expected one of "I", "U", "D"',
    ]


def test_dms_orders_by_its_timestamp() -> None:
    message = dms("insert", {"id": 1})
    sources = default_sequence(batch([message]), "dms-json")
    assert [(s.column, s.type) for s in sources] == [
        ("_timestamp", AtomicType("TIMESTAMP_LTZ", precision=6)),
        ("_transaction_id", AtomicType("BIGINT")),
        ("_record_id", AtomicType("BIGINT")),
    ]
    assert lines(ordered_feed("dms-json", "id INT", *sources), message) == [
        "0 +I id=1 _timestamp=2026-01-02 03:04:05.600000+00:00 _transaction_id=0 _record_id=0"
    ]


def test_rows_as_they_are_are_new_rows() -> None:
    rows = feed("json", "id INT; v STRING")
    assert lines(rows, {"id": 1, "v": "a", "more": [1]}, {"id": 2}, "[1]", '{"id": "x"}') == [
        "0 +I id=1 v=a",
        "1 +I id=2 v=None",
        "2 ! JSON of type ARRAY, expected an object",
        "3 ! column id: found 'x', expected INT",
    ]
    assert default_sequence(batch([{"id": 1, "ts": 2}]), "json") == ()
