"""The commands, called as the shell calls them, but in this process."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from typer.main import get_command

import keytide as kt
from command_line import commands
from keytide.cli.main import app, load_command

Run = Callable[..., Any]


COMMANDS = commands()


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- finding the table -----------------------------------------------------------------------------


def test_table_is_found_by_path_by_name_and_by_environment(
    run: Run, orders: kt.Table, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_path = run("scan", f"{warehouse}/shop.db/orders", "-f", "json")
    by_name = run("scan", "shop.orders", "-w", warehouse, "-f", "json")
    monkeypatch.setenv("KEYTIDE_WAREHOUSE", warehouse)
    by_environment = run("scan", "shop.orders", "-f", "json")
    assert len(json_lines(by_path.out)) == 3
    assert by_path == by_name == by_environment


def test_relative_path_is_found_and_named_in_full(
    run: Run, orders: kt.Table, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(warehouse, "shop.db", "orders"))
    assert json.loads(run("describe", ".", "-f", "json").out)["table"] == "shop.orders"


def test_name_without_warehouse_is_wrong_usage(run: Run) -> None:
    done = run("scan", "shop.orders")
    assert (done.code, done.out) == (2, "")
    assert "KEYTIDE_WAREHOUSE" in done.err


@pytest.mark.parametrize("command", ["scan", "describe", "snapshots", "explain"])
def test_unknown_table_is_one_line_and_exit_code_1(
    run: Run, orders: kt.Table, warehouse: str, command: str
) -> None:
    done = run(command, "shop.order", "-w", warehouse)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: table shop.order does not exist in ")
    assert done.err.endswith(": shop.orders\n")
    assert done.err.count("\n") == 1


# -- ls, describe, snapshots -----------------------------------------------------------------------


def test_ls_lists_tables_of_warehouse_or_database(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    kt.connect(warehouse).create_table("t", pa.schema([("k", pa.int64())]), primary_key=["k"])
    assert run("ls", warehouse).out == "table\ndefault.t\nshop.orders\n"
    assert run("ls", warehouse, "shop", "-f", "csv").out == '"table"\n"shop.orders"\n'
    assert run("ls", "shop", "-w", warehouse, "-f", "json").out == '{"table":"shop.orders"}\n'


def test_ls_of_nothing_says_so_beside_the_data(run: Run, warehouse: str) -> None:
    done = run("ls", warehouse, "-f", "json")
    assert (done.code, done.out, done.err) == (0, "", f"no tables in {warehouse}\n")


def test_ls_of_warehouse_that_does_not_exist_is_exit_code_1(run: Run, warehouse: str) -> None:
    done = run("ls", f"{warehouse}/typo", "-f", "json")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: the warehouse {warehouse}/typo does not exist; ")
    assert not Path(warehouse, "typo").exists()


@pytest.fixture
def lake_here(warehouse: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A current folder where the warehouse lies as `lake`."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "lake").symlink_to(warehouse)
    monkeypatch.chdir(here)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("lake",), "table\nshop.orders\n"),
        (("lake", "shop"), "table\nshop.orders\n"),
        (("./lake", "shop"), "table\nshop.orders\n"),
        (("lake", "other"), ""),
        (("-w", "lake", "shop"), "table\nshop.orders\n"),
    ],
)
def test_ls_takes_the_folder_that_lies_here(
    run: Run, orders: kt.Table, lake_here: None, arguments: tuple[str, ...], lines: str
) -> None:
    assert (run("ls", *arguments).code, run("ls", *arguments).out) == (0, lines)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ls", "lake/shop.db"), "this is a database: keytide ls "),
        (("ls", "lake/shop.db/orders"), "this is a table: keytide describe lake/shop.db/orders"),
        (("ls", "-w", "lake", "lake"), "to list the local folder of that name, use ./lake"),
        (("ls", "nope"), "/nope does not exist"),
        (("scan", "lake"), "this is a warehouse: keytide describe -w lake shop.orders"),
        (("scan", "lake/shop.db"), "this is a database: keytide ls "),
        (("scan", "-w", "lake", "shop.db/orders"), "not a table of lake, where a table is named"),
        (("scan", "orders"), "--warehouse or set KEYTIDE_WAREHOUSE, or write the table's path"),
        (("sql", "SELECT 1"), "--warehouse or set KEYTIDE_WAREHOUSE"),
    ],
)
def test_message_says_what_lies_there_instead(
    run: Run, orders: kt.Table, lake_here: None, arguments: tuple[str, ...], told: str
) -> None:
    shown = " ".join(run(*arguments).err.split())
    assert told in shown


def test_table_is_found_by_the_bare_name_of_its_folder(
    run: Run, orders: kt.Table, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(warehouse, "shop.db"))
    assert json.loads(run("describe", "orders", "-f", "json").out)["table"] == "shop.orders"


def test_describe_json_tells_columns_keys_and_what_is_stored(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    document = json.loads(run("describe", "shop.orders", "-w", warehouse, "-f", "json").out)
    columns = [(c["column"], c["type"], c["nullable"], c["key"]) for c in document["columns"]]
    assert columns == [
        ("id", "BIGINT", False, "primary"),
        ("status", "STRING", True, ""),
        ("amount", "DECIMAL(9, 2)", True, ""),
    ]
    assert document["primary_key"] == ["id"]
    assert document["options"]["bucket"] == "2"
    assert (document["snapshot_id"], document["buckets"], document["rows_stored"]) == (2, 2, 6)


def test_describe_shows_table_never_written_to(run: Run, warehouse: str) -> None:
    kt.connect(warehouse).create_table("t", pa.schema([("k", pa.int64())]), primary_key=["k"])
    done = run("describe", "t", "-w", warehouse)
    assert done.code == 0
    assert "rows_stored  0" in done.out
    assert "snapshot" not in done.out


def test_snapshots_come_newest_first_up_to_limit(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    every = json_lines(run("snapshots", "shop.orders", "-w", warehouse, "-f", "json").out)
    assert [(s["id"], s["kind"], s["delta_versions"], s["total_versions"]) for s in every] == [
        (2, "APPEND", 3, 6),
        (1, "APPEND", 3, 3),
    ]
    newest = run("snapshots", "shop.orders", "-w", warehouse, "--limit", "1", "-f", "json")
    assert json_lines(newest.out) == every[:1]


# -- scan, get, explain ----------------------------------------------------------------------------


def test_scan_gives_merged_rows(run: Run, orders: kt.Table, warehouse: str) -> None:
    done = run("scan", "shop.orders", "-w", warehouse, "-f", "json")
    assert sorted(json_lines(done.out), key=lambda row: int(row["id"])) == [
        {"id": 1, "status": "paid", "amount": "10.00"},
        {"id": 2, "status": "", "amount": "20.50"},
        {"id": 3, "status": None, "amount": None},
    ]
    assert done.err == ""


def test_scan_takes_columns_condition_limit_and_time(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    common = ("scan", "shop.orders", "-w", warehouse, "-f", "csv")
    chosen = run(*common, "--columns", "status, id", "--where", "id = 1")
    assert chosen.out == '"status","id"\n"paid",1\n'
    earlier = run(*common, "--columns", "status", "--where", "id = 1", "--snapshot-id", "1")
    assert earlier.out == '"status"\n"new"\n'
    later = run(*common, "--columns", "status", "--where", "id = 1", "--as-of", "2999-01-01")
    assert later.out == '"status"\n"paid"\n'
    assert len(run(*common, "--limit", "2").out.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--columns", "nope"), "has no column 'nope'"),
        (("--where", "nope = 1"), "has no column 'nope'"),
        (("--where", "id = = 1"), "cannot be parsed"),
        (("--where", "id = 'one'"), "'one'"),
        (("--snapshot-id", "9"), "no snapshot 9"),
        (("--tag", "nope"), "no tag 'nope'"),
        (("--as-of", "yesterday"), "'yesterday'"),
    ],
)
def test_scan_of_what_is_not_there_is_one_line_and_exit_code_1(
    run: Run, orders: kt.Table, warehouse: str, arguments: tuple[str, ...], message: str
) -> None:
    done = run("scan", "shop.orders", "-w", warehouse, "-f", "csv", *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


def test_debug_shows_where_error_comes_from(run: Run, orders: kt.Table, warehouse: str) -> None:
    with pytest.raises(kt.NotFoundError):
        raise_of(run, "--debug", "scan", "nope", "-w", warehouse)


def raise_of(run: Run, *arguments: str) -> None:
    from typer.testing import CliRunner

    CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("arguments", [("--bogus",), ("--limit", "0"), ("--format", "xml")])
def test_wrong_option_is_exit_code_2(
    run: Run, orders: kt.Table, warehouse: str, arguments: tuple[str, ...]
) -> None:
    done = run("scan", "shop.orders", "-w", warehouse, *arguments)
    assert (done.code, done.out) == (2, "")


def test_get_finds_row_by_key(run: Run, orders: kt.Table, warehouse: str) -> None:
    done = run("get", "shop.orders", "2", "-w", warehouse, "-f", "json")
    assert (done.code, done.out) == (0, '{"id":2,"status":"","amount":"20.50"}\n')


def test_get_of_key_that_is_not_there_is_exit_code_1(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    done = run("get", "shop.orders", "4", "-w", warehouse)
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: table shop.orders has no row with id = 4\n"


@pytest.mark.parametrize(
    ("key", "code", "message"),
    [
        (("one",), 1, "'id' is BIGINT NOT NULL, found 'one'"),
        (("9223372036854775808",), 1, "'id' is BIGINT NOT NULL"),
        (("1", "2"), 2, "the primary key of shop.orders is id; found 2 values: 1 2"),
    ],
)
def test_get_of_key_that_does_not_fit(
    run: Run, orders: kt.Table, warehouse: str, key: tuple[str, ...], code: int, message: str
) -> None:
    done = run("get", "shop.orders", *key, "-w", warehouse)
    assert (done.code, done.out) == (code, "")
    assert message in done.err


def test_get_takes_each_key_column_as_json_writes_it(run: Run, warehouse: str) -> None:
    row = {
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.000+00:00",
        "price": "-1.50",
        "name": "a b",
        "raw": "AP8=",
        "n": -7,
    }
    types = [pa.date32(), pa.timestamp("ms", "UTC"), pa.decimal128(9, 2), pa.string()]
    schema = pa.schema(list(zip(row, [*types, pa.binary(), pa.int32()], strict=True)))
    values = [row["day"], row["at"], row["price"], row["name"], b"\x00\xff", row["n"]]
    columns = [
        pa.array([value]) if isinstance(value, bytes) else pa.array([str(value)]).cast(field.type)
        for value, field in zip(values, schema, strict=True)
    ]
    table = kt.connect(warehouse).create_table("t", schema, primary_key=list(row))
    table.write(pa.table(columns, schema=schema))
    done = run("get", "-w", warehouse, "-f", "json", "t", "--", *map(str, row.values()))
    assert (done.err, json_lines(done.out)) == ("", [row])


def test_why_tells_versions_and_where_the_row_comes_from(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    common = ("why", "shop.orders", "1", "-w", warehouse)
    document = json.loads(run(*common, "-f", "json").out)
    assert [(v["version"], v["row_kind"], v["outcome"]) for v in document["versions"]] == [
        (1, "+I", "replaced by version 2: it arrived later (_SEQUENCE_NUMBER 0 < 1)"),
        (2, "+U", "is the row"),
    ]
    assert (document["key"], document["snapshot_id"]) == ({"id": 1}, 2)
    assert document["row"] == {"id": 1, "status": "paid", "amount": "10.00"}
    assert document["taken"] == {"status": [2], "amount": [2]}
    assert run(*common).out == f"{orders.why(1)}\n"
    versions = run(*common, "-f", "csv").out.splitlines()
    assert versions[0].startswith('"version","file","level",')
    assert [line.split(",")[0] for line in versions[1:]] == ["1", "2"]


def test_why_of_deleted_key_has_no_row_and_travels_back(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    common = ("why", "shop.orders", "4", "-w", warehouse, "-f", "json")
    document = json.loads(run(*common).out)
    assert (document["row"], document["versions"][-1]["outcome"]) == (None, "deletes the row")
    earlier = json.loads(run(*common, "--snapshot-id", "1").out)
    assert earlier["row"] == {"id": 4, "status": "new", "amount": "1.00"}


def test_why_of_key_without_version_is_exit_code_1(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    done = run("why", "shop.orders", "9", "-w", warehouse)
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: table shop.orders stores no version of id = 9\n"


def test_explain_tells_what_pruning_leaves(run: Run, orders: kt.Table, warehouse: str) -> None:
    common = ("explain", "shop.orders", "-w", warehouse, "--where", "id = 1")
    document = json.loads(run(*common, "-f", "json").out)
    stages = {stage["stage"]: stage for stage in document["funnel"]}
    assert document["snapshot_id"] == 2
    assert (stages["all"]["buckets"], stages["bucket"]["buckets"]) == (2, 1)
    shown = run(*common).out.splitlines()
    assert shown[0] == "scan of shop.orders, snapshot 2"
    assert shown[1].split() == ["stage", "partitions", "buckets", "files", "rows", "bytes"]
    assert run(*common, "-f", "csv").out.splitlines()[0] == (
        '"stage","partitions","buckets","files","rows","bytes"'
    )


def test_explain_reads_no_data(run: Run, orders: kt.Table, warehouse: str) -> None:
    for file in Path(warehouse).rglob("data-*.parquet"):
        file.unlink()
    assert run("explain", "shop.orders", "-w", warehouse).code == 0
    assert run("scan", "shop.orders", "-w", warehouse).code == 1


# -- the command itself ----------------------------------------------------------------------------


def test_version_and_help_exit_with_0(run: Run) -> None:
    assert run("--version").out == f"keytide {kt.__version__}\n"
    assert run("--help").code == 0


def test_list_of_commands_shows_the_short_help_of_each() -> None:
    listed = {
        name: found.get_short_help_str(200) for name, found in get_command(app).commands.items()
    }
    assert listed == {name: load_command(name).get_short_help_str(200) for name in listed}


def test_list_of_commands_loads_none_of_them() -> None:
    code = (
        "import sys\n"
        "from keytide.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout
    assert not {"polars", "pyarrow", "numpy", "duckdb", "rich"} & {*done.stderr.split()}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_gives_example(run: Run, command: tuple[str, ...]) -> None:
    assert f"Example: keytide {' '.join(command)} " in run(*command, "--help").out


NONSENSE = (
    "", " ", "-1", "99999999999999999999", "1.5", "2026-99-99", "dt=", "=", "-1 d", "[", "'", "\n",
    "\0", "--", "../x", "x" * 300, "nosuch", "forever", "*", "$", "id",
)  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c not in {("ingest",), ("ui",)}], ids=" ".join
)
def test_nonsense_is_one_line_or_usage_and_never_a_surprise(
    run: Run, orders: kt.Table, warehouse: str, command: tuple[str, ...]
) -> None:
    chance = random.Random(" ".join(command))
    for _ in range(6):
        given = [*command, *nonsense(COMMANDS[command], orders.uri, chance)]
        done = run(*given, *chance.choice([[], ["-w", warehouse]]))
        assert done.code in (0, 1, 2), given
        assert "error: unexpected" not in done.err, given
        if done.err.startswith("error: "):
            assert done.code == 1, given
            assert done.err.count("\n") == 1 or done.err.endswith("^\n"), given


def nonsense(command: Any, table: str, chance: random.Random) -> Iterator[str]:
    """Arguments for a command: the path of a table where it takes one, as a rule, and nonsense."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            is_table = parameter.name == "table" and chance.random() < 0.8
            yield table if is_table else chance.choice(NONSENSE)
        elif parameter.name not in ("help", "spark", "warehouse") and chance.random() < 0.4:
            yield parameter.opts[0]
            if not getattr(parameter, "is_flag", False):
                yield chance.choice(NONSENSE)


def test_unexpected_error_is_one_line(
    run: Run, orders: kt.Table, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(kt.Scan, "tasks", fail)
    done = run("scan", "shop.orders", "-w", warehouse)
    assert done.code == 1
    assert (
        done.err == "error: unexpected RuntimeError: out of luck (use --debug for the traceback)\n"
    )


# -- a cache ---------------------------------------------------------------------------------------


@pytest.fixture
def far_orders() -> str:
    """The address of a table in an object store."""
    lake = kt.connect(f"memory://{uuid4().hex}")
    table = lake.create_table("shop.orders", pa.schema([("id", pa.int64())]), primary_key=["id"])
    table.write([{"id": 1}])
    return table.uri


@pytest.mark.parametrize("command", ["scan", "get", "sql", "ls", "verify"])
def test_cache_is_for_whatever_a_command_opens(
    run: Run, far_orders: str, tmp_path: Path, command: str
) -> None:
    warehouse = far_orders.partition("/shop.db")[0]
    arguments = {
        "scan": (far_orders,),
        "get": ("shop.orders", "1", "-w", warehouse),
        "sql": ("SELECT * FROM shop.orders", "-w", warehouse),
        "ls": (warehouse,),
        "verify": (far_orders,),
    }[command]
    done = run("--cache", str(tmp_path), "--cache-bytes", "1 gb", command, *arguments)
    assert (done.code, run(command, *arguments)) == (0, done)
    assert bool([*tmp_path.iterdir()]) is (command in ("scan", "get", "sql"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cache", "c", "scan", "{near}"), "cache: .* is on the local disk"),
        (("--cache", "c", "sql", "SELECT 1", "-w", "{near}"), "cache: .* is on the local disk"),
        (("--cache", "c", "ls", "{near}"), "cache: .* is on the local disk"),
        (("--cache-bytes", "1 gb", "scan", "{far}"), "cache_bytes is '1 gb', but cache is not set"),
        (("--cache", "c", "--cache-bytes", "x", "scan", "{far}"), "cache_bytes is 'x'; expected"),
        (("--cache", "c", "ingest", "{far}", "--from", "x", "--format", "debezium-json"),
         "ingest, which reads no table"),
    ],
)  # fmt: skip
def test_cache_that_has_no_use_is_refused(
    run: Run, orders: kt.Table, far_orders: str, arguments: str, message: str
) -> None:
    done = run(*(each.format(near=orders.uri, far=far_orders) for each in arguments))
    assert done.code in (1, 2)
    assert re.search(message, " ".join(done.err.split()))


def test_index_of_keys_is_sized_before_there_is_one(run: Run) -> None:
    told = json_lines(run("upsert-estimate", "1000000", "--key-bytes", "16", "-f", "json").out)
    assert [each["bytes_a_key"] for each in told] == [25, 50, 50, 108]
    assert told[0]["bytes"] == 25_000_000
    assert "expected 1 or more" in run("upsert-estimate", "0").err
