"""The judge: its tables are read right by Keytide, and no fault of a reader escapes it."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.base.text import json_lines
from keytide.testing import judge
from keytide.testing.json_values import arrow_column, comparable
from keytide.testing.judged_tables import cells

OWN_READER = [sys.executable, str(Path(__file__).parents[1] / "support" / "judged_reader.py")]
AREAS = list(dict.fromkeys(cell.area for cell in cells()))
SHARES = 14
PAIR = "types of keys: BOOLEAN, three commits, parquet"


def test_there_are_two_thousand_tables_of_different_names() -> None:
    found = [(cell.area, cell.name) for cell in cells()]
    assert len(found) == len({*found}) >= 2_000


@pytest.mark.one_in(14)
@pytest.mark.parametrize("n", range(SHARES))
@pytest.mark.parametrize("area", [area for area in AREAS if "published" not in area])
def test_keytide_reads_its_tables_right(area: str, n: int, tmp_path: Path) -> None:
    names = {cell.name for cell in [cell for cell in cells() if cell.area == area][n::SHARES]}
    judge.make_tables(tmp_path, lambda cell: cell.area == area and cell.name in names, processes=1)
    verdicts = [*judge.judge(tmp_path, OWN_READER)]
    assert [each for each in verdicts if each.outcome != "right"] == []
    assert {each.name for each in verdicts} == names


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three tables."""
    folder = tmp_path_factory.mktemp("tables")
    judge.make_tables(folder, lambda cell: f"{cell.area}: {cell.name}".startswith(PAIR[:22]), 1)
    lines = (folder / "tables.jsonl").read_text().splitlines()
    assert len(lines) == 9
    (folder / "tables.jsonl").write_text("\n".join(lines[:3]))
    return folder


def reader(tmp_path: Path, body: str) -> list[str]:
    """A command that runs `body` for each request, which is `asked`; `n` counts from 0."""
    path = tmp_path / "reader.py"
    path.write_text(
        "import json, sys, time\n"
        "for n, line in enumerate(sys.stdin):\n"
        "    asked = json.loads(line)\n" + "".join(f"    {line}\n" for line in body.splitlines())
    )
    return [sys.executable, "-u", str(path)]


RIGHT = 'print(\'{"k": false, "v": 1}\\n\')'
READERS: dict[str, tuple[str, list[str], str]] = {
    "a right one": (RIGHT, ["right"] * 3, ""),
    "one that refuses": ('print(json.dumps("no such type") + "\\n")', ["refused"] * 3, "no such"),
    "one that misses a row": ("print()", ["wrong"] * 3, "misses (False, 1); has no more"),
    "one with a row twice": (
        f"{RIGHT[:-4]}')\n{RIGHT}", ["wrong"] * 3, "misses nothing; has (False, 1) more",
    ),
    "one with another value": (
        'print(\'{"k": false, "v": 2}\\n\')', ["wrong"] * 3, "misses (False, 1); has (False, 2)",
    ),
    "one with a value of another type": (
        'print(\'{"k": "false", "v": 1}\\n\')', ["wrong"] * 3, "'false' is no bool",
    ),
    "one with another column": (
        'print(\'{"k": false, "v": 1, "_KEY_k": false}\\n\')', ["wrong"] * 3, "['_KEY_k']",
    ),
    "one that prints something else": ('print("hello\\n")', ["failed"] * 3, "Expecting value"),
    "one that ends at the second table": (
        f"if n: sys.exit(3)\n{RIGHT}", ["right", "failed", "right"], "exit code 3",
    ),
    "one that gives no answer": ("time.sleep(9)", ["failed"] * 3, "within 0.5 seconds"),
}  # fmt: skip


@pytest.mark.parametrize("which", READERS)
def test_verdict_about_a_reader_is_what_it_does(which: str, tables: Path, tmp_path: Path) -> None:
    body, outcomes, detail = READERS[which]
    found = [*judge.judge(tables, reader(tmp_path, body), seconds=0.5 if "sleep" in body else 30)]
    assert [each.outcome for each in found] == outcomes
    assert detail in next((each.detail for each in found if each.outcome != "right"), "")


def test_reader_is_told_where_a_table_is_and_what_it_has(tables: Path, tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'asked')!r}, 'a').write(line)\n{RIGHT}"
    [*judge.judge(tables, reader(tmp_path, body))]
    asked = json.loads((tmp_path / "asked").read_text().splitlines()[0])
    assert Path(asked["path"], "schema", "schema-0").exists()
    assert Path(asked["warehouse"], "default.db", "t") == Path(asked["path"])
    assert (asked["table"], asked["form"]) == ("default.t", "paimon")
    assert asked["columns"] == {"k": "BOOLEAN NOT NULL", "v": "INT"}
    assert asked.keys() == {"warehouse", "path", "table", "form", "columns"}


# -- the command -----------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    return judge.main(arguments)


def test_command_prints_a_table_and_ends_with_0_if_all_is_right(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--tables", str(tables), *OWN_READER) == 0
    printed = capsys.readouterr().out
    assert "types of keys" in printed
    assert "wrong:" not in printed


def test_reader_gets_its_own_dashes(tables: Path, tmp_path: Path) -> None:
    own = reader(tmp_path, f"open({str(tmp_path / 'given')!r}, 'w').write(sys.argv[1])\n{RIGHT}")
    assert run("--tables", str(tables), "--", *own, "--") == 0
    assert (tmp_path / "given").read_text() == "--"


def test_command_names_what_is_wrong_and_ends_with_1(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--tables", str(tables), *reader(tmp_path, "print()")) == 1
    assert f"wrong: {PAIR}: it misses (False, 1); has no more" in capsys.readouterr().out


def test_command_prints_verdicts_as_json(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--tables", str(tables), "--only", "three commits, parquet", "--json", *OWN_READER)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "area": "types of keys", "name": PAIR.partition(": ")[2], "outcome": "right", "detail": "",
    }  # fmt: skip


def test_archive_has_tables_that_can_be_judged_elsewhere(tmp_path: Path) -> None:
    words = ("tag, 1 b", "delta, deduplicate, c", "iceberg, deduplicate, c")
    only = [word for each in words for word in ("--only", each)]
    archive = tmp_path / "tables.tar.xz"
    assert run("--tables", str(tmp_path / "here"), "--archive", str(archive), *only) == 0
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "there", filter="data")
    (tmp_path / "here").rename(tmp_path / "gone")
    forms = Counter(
        json.loads(line)["request"]["form"]
        for line in (tmp_path / "there" / "tables.jsonl").read_text().splitlines()
    )
    assert forms == {"paimon": 3, "delta": 1}
    assert run("--tables", str(tmp_path / "there"), "--form", "paimon", *OWN_READER) == 0


def test_reader_that_always_fails_is_asked_five_times(tmp_path: Path) -> None:
    judge.make_tables(tmp_path / "tables", lambda cell: "of BOOLEAN" in cell.name, processes=1)
    body = f"open({str(tmp_path / 'asked')!r}, 'a').write(line)\nsys.exit(1)"
    found = [*judge.judge(tmp_path / "tables", reader(tmp_path, body))]
    assert {each.outcome for each in found} == {"failed"}
    assert len((tmp_path / "asked").read_text().splitlines()) == 5 < len(found)
    assert found[-1].detail == "not read after 5 failures in a row"


@pytest.mark.parametrize(
    ("given", "saying"),
    [
        (["no-such-command"], "the command 'no-such-command' does not exist"),
        (["--only", "nothing like this", sys.executable], "no table of the folder has these words"),
    ],
)
def test_command_that_cannot_do_anything_says_why(
    given: list[str], saying: str, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("--tables", str(tables), *given)
    assert saying in capsys.readouterr().err


def test_command_without_anything_to_do_says_what_to_give(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run()
    assert "name a command that reads tables" in capsys.readouterr().err


# -- the page --------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "judged-readers.md"


def test_reader_of_the_page_reads_delta_tables_right(tmp_path: Path) -> None:
    (body,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "reader.py"
    path.write_text(body)
    judge.make_tables(tmp_path / "tables", lambda cell: "a, deduplicate, c" in cell.name, 1)
    judge.make_tables(tmp_path / "others", lambda cell: cell.name.startswith("tag, 1 b"), 1)
    command = [sys.executable, str(path)]
    outcomes = [
        each.outcome
        for folder in ("tables", "others")
        for each in judge.judge(tmp_path / folder, command)
    ]
    assert outcomes == ["right", "refused", "refused", "refused"]


def test_page_says_that_keytide_reads_every_table_right() -> None:
    of_the_format = sum(cell.form == "paimon" for cell in cells())
    assert f"| Keytide | {of_the_format} | 0 | 0 |" in PAGE.read_text()


# -- values ----------------------------------------------------------------------------------------

SPELLINGS: list[tuple[str, list[Any], list[Any]]] = [
    ("INT", [1], [2, "1", 1.0, True]),
    ("BOOLEAN", [True], [False, 1, "true"]),
    ("FLOAT", [0.1, 0.10000000149011612], [0.2, 0.1001]),
    ("DOUBLE", ["NaN"], ["Infinity", 0.0]),
    ("DOUBLE", [0.0, 0], [-0.0, 5e-324]),
    ("DECIMAL(9, 2)", ["1.50", 1.5, "1.5"], ["1.51", "-1.50"]),
    ("DECIMAL(38, 0)", ["9" * 38], ["1" + "0" * 38, "9" * 37 + "8"]),
    ("BYTES", ["AP8="], ["AP4=", ""]),
    ("DATE", ["1970-01-01"], ["1970-01-02"]),
    ("TIME(3)", ["00:00:01", "00:00:01.000"], ["00:00:01.001"]),
    ("TIMESTAMP(9)", ["1970-01-01T00:00:00.000000001", "1970-01-01 00:00:00.000000001"],
     ["1970-01-01T00:00:00.000000002", "1970-01-01T00:00:00"]),
    ("TIMESTAMP(3) WITH LOCAL TIME ZONE",
     ["1970-01-01T01:00:00", "1970-01-01T01:00:00Z", "1970-01-01T02:00:00+01:00"],
     ["1970-01-01T02:00:00Z"]),
    ("ARRAY<INT>", [[1, 2]], [[2, 1], [1], None]),
    ("MAP<STRING, INT>", [{"a": 1, "b": 2}, [["b", 2], ["a", 1]]], [{"a": 1}, {"a": 2, "b": 1}]),
    ("MAP<INT, INT>", [{"1": 2}, [[1, 2]], [{"key": 1, "value": 2}]], [{"2": 1}, [["1", 2]]]),
    ("MULTISET<STRING>", [[["a", 1], ["b", 2]], [["b", 2], ["a", 1]]], [[["a", 1], ["b", 1]]]),
    ("ROW<a INT, b INT>", [{"a": 1, "b": None}, {"a": 1}], [{"a": 1, "b": 0}, None]),
]  # fmt: skip


def seen(value: Any, kind: kt.Field) -> str:
    try:
        return repr(comparable(value, kind.type))
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}"


@pytest.mark.parametrize(("sql_type", "same", "others"), SPELLINGS)
def test_spellings_of_one_value_are_equal_and_others_are_not(
    sql_type: str, same: list[Any], others: list[Any]
) -> None:
    kind = kt.Field(-1, "x", kt.parse_sql_type(sql_type))
    (value,) = {seen(each, kind) for each in same}
    assert value not in {seen(each, kind) for each in others}


def test_values_are_written_as_they_are_spelled() -> None:
    """What Keytide's own lines of JSON spell."""
    of_values = [cell for cell in cells() if cell.area == "types of values"]
    for cell in of_values[::12]:
        kind, values = kt.parse_sql_type(cell.columns["x"]), [value for _, value in cell.rows]
        rows = pa.table([arrow_column(values, kind)], ["x"])
        lines = b"".join(map(json_lines, rows.to_batches())).splitlines()
        assert [repr(comparable(json.loads(line)["x"], kind)) for line in lines] == [
            repr(comparable(value, kind)) for value in values
        ]
