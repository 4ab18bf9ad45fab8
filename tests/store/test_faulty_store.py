"""The fault seam does what its faults say, and nothing else."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import polars as pl
import pytest

from keytide.errors import DataError, InvalidError
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore


def write_output(store: Store, path: str, data: bytes) -> None:
    with store.open_output(path) as file:
        file.write(data)


WRITES: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("a", b"12345678"),
    "create": lambda store: store.create("a", b"12345678"),
    "output": lambda store: write_output(store, "a", b"12345678"),
}


def contents(store: Store) -> str:
    return " ".join(
        sorted(f"{info.path}={store.read(info.path).decode()}" for info in store.list())
    )


@pytest.mark.parametrize(
    ("operation", "action", "left"),
    [
        ("put", "fail", ""),
        ("put", "lost-response", "a=12345678"),
        ("put", "torn", "a=1234"),
        ("put", "disk-full", ""),
        ("create", "fail", ""),
        ("create", "lost-response", "a=12345678"),
        ("create", "torn", ".a.torn.tmp=1234"),
        ("create", "disk-full", ""),
        ("output", "fail", ""),
        ("output", "lost-response", "a=12345678"),
        ("output", "torn", "a=1234"),
        ("output", "disk-full", ""),
    ],
)
def test_fault_in_a_write_raises_and_leaves_what_it_says(
    local_store: Store, operation: str, action: str, left: str
) -> None:
    store = FaultyStore(local_store, [Fault(operation, "a", action=action)])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=local_store.uri_of("a")) as caught:
        WRITES[operation](store)
    assert contents(local_store) == left
    if action == "disk-full":
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.ENOSPC
    local_store.delete(["a"])
    WRITES[operation](store)
    assert local_store.read("a") == b"12345678"


@pytest.mark.parametrize(("operation", "left"), [("put", ""), ("create", ""), ("output", "a=1234")])
def test_crash_passes_every_except_exception_and_is_for_good(
    local_store: Store, operation: str, left: str
) -> None:
    store = FaultyStore(local_store, [Fault("write", action="crash")])
    with pytest.raises(Crash):
        WRITES[operation](store)
    with pytest.raises(Crash):
        store.delete(["a"])
    with pytest.raises(Crash):
        store.sub("b").read("a")
    assert not issubclass(Crash, Exception)
    assert contents(local_store) == left


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("read", lambda store: store.read("t/a")),
        ("read", lambda store: store.read_all(["t/a"])),
        ("input", lambda store: store.open_input("t/a")),
        ("exists", lambda store: store.exists("t/a")),
        ("size", lambda store: store.size("t/a")),
        ("list", lambda store: list(store.list("t"))),
        ("list", lambda store: store.list_names("t")),
        ("delete", lambda store: store.delete(["t/a"])),
        ("delete", lambda store: store.delete_tree("t")),
    ],
)
def test_other_operations_fail_once_and_then_work(
    local_store: Store, operation: str, call: Callable[[Store], object]
) -> None:
    local_store.put("t/a", b"1")
    store = FaultyStore(local_store, [Fault(operation)])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="injected fault"):
        call(store)
    assert local_store.read("t/a") == b"1"
    call(store)
    assert [name for name, _ in store.log] == [operation, operation]


def test_fault_strikes_the_nth_match_and_the_ones_after_it(local_store: Store) -> None:
    fault = Fault("put", "*/manifest/*", nth=2, times=2)
    store = FaultyStore(local_store, [fault])
    store.put_all({"db/manifest/1": b"", "db/other": b""})
    for name in ("db/manifest/2", "db/manifest/3"):
        with pytest.raises(DataError):
            store.put(name, b"")
    store.put("db/manifest/4", b"")
    assert contents(local_store) == "db/manifest/1= db/manifest/4= db/other="


def test_lost_response_of_a_lost_race_changes_nothing(local_store: Store) -> None:
    local_store.put("a", b"theirs")
    store = FaultyStore(local_store, [Fault("create", action="lost-response")])
    with pytest.raises(DataError):
        store.create("a", b"mine")
    assert local_store.read("a") == b"theirs"


def test_hint_stays_silent_about_faults(local_store: Store) -> None:
    store = FaultyStore(local_store, [Fault("hint"), Fault("hint", nth=2, action="torn")])
    store.hint("LATEST", b"10")
    assert contents(local_store) == ""
    store.hint("LATEST", b"10")
    assert contents(local_store) == "LATEST=1"


def test_log_and_faults_span_sub_stores_with_paths_from_the_first_root(local_store: Store) -> None:
    store = FaultyStore(local_store, [Fault("put", "db/t/b")])
    table = store.sub("db").sub("t")
    table.put("a", b"")
    with pytest.raises(DataError):
        table.put("b", b"")
    table.delete(["a", "c"])
    table.put_all({"d": b"", "e": b""})
    assert store.log == [
        ("put", "db/t/a"),
        ("put", "db/t/b"),
        ("delete", "db/t/a"),
        ("delete", "db/t/c"),
        ("put", "db/t/d"),
        ("put", "db/t/e"),
    ]


def test_failed_body_of_a_faulty_output_leaves_nothing(local_store: Store) -> None:
    store = FaultyStore(local_store, [Fault("output", action="torn")])
    with pytest.raises(ZeroDivisionError), store.open_output("a"):
        raise ZeroDivisionError
    assert contents(local_store) == ""


def write_with_polars(store: Store) -> None:
    with store.open_output("a") as file:
        pl.DataFrame({"k": range(1_000)}).write_parquet(file)


def write_and_look_away(store: Store) -> None:
    with store.open_output("a") as file, suppress(OSError):
        file.write(bytes(1 << 20))


def test_error_of_the_store_survives_a_writer_that_swallows_it(local_store: Store) -> None:
    store = FaultyStore(local_store, [Fault("output", action="disk-full")])
    with pytest.raises(DataError, match="No space left"):
        write_and_look_away(store)
    assert contents(local_store) == ""


@pytest.mark.parametrize("action", ["torn", "disk-full", "lost-response"])
def test_error_of_the_store_survives_a_writer_that_wraps_it(
    local_store: Store, action: Action
) -> None:
    store = FaultyStore(local_store, [Fault("output", action=action)])
    with pytest.raises(DataError, match=local_store.uri_of("a")):
        write_with_polars(store)


def test_unknown_operation_or_action_is_invalid() -> None:
    with pytest.raises(InvalidError, match="Unknown fault 'rename', 'fail'"):
        Fault("rename")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="Unknown fault 'put', 'explode'"):
        Fault("put", action="explode")  # type: ignore[arg-type]
