"""A verb is declared once: its method, its procedure and its command take and give the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import keytide as kt
from command_line import commands
from keytide.base.record import Record
from keytide.cli.main import app
from keytide.sql.procedures import PROCEDURES


class Face(NamedTuple):
    """A way to call something: where it is, and what it is called there."""

    where: str
    name: str


METHODS = {name: call for name, call in inspect.getmembers(kt.Table, inspect.isfunction)
           if name[0] != "_"}  # fmt: skip


COMMANDS = {" ".join(words): each.callback.__wrapped__ for words, each in commands().items()}

FACES: Mapping[Face, Callable[..., Any]] = {
    Face(where, name): call
    for where, calls in (("python", METHODS), ("sql", PROCEDURES), ("cli", COMMANDS))
    for name, call in calls.items()
}


def verb_of(call: Callable[..., Any]) -> Callable[..., Any] | None:
    """The verb that a face is made of; None for one that is written by hand."""
    verb = inspect.unwrap(call)
    by_hand = ("keytide.lake.", "keytide.sql.", "keytide.cli.")
    return None if verb.__module__.startswith(by_hand) else verb


MADE = {face: verb for face, call in FACES.items() if (verb := verb_of(call))}
VERBS = {verb.__name__: verb for verb in MADE.values()}

CHOICE = "says by which of several names a snapshot is meant"
PLACES = "names partitions in its own way"
ENGINE = "chooses what computes, or where tasks run"
TELLS = "says what was done in a sentence, and gives no row"
SEVERAL = "takes several names at once"
WRITTEN = {
    Face("sql", "rollback"): ("rollback_to", CHOICE),
    Face("sql", "rollback_to"): ("rollback_to", CHOICE),
    Face("sql", "rollback_to_timestamp"): ("rollback_to", CHOICE),
    Face("sql", "rollback_to_watermark"): ("rollback_to", CHOICE),
    Face("cli", "rollback"): ("rollback_to", CHOICE),
    Face("sql", "create_tag_from_timestamp"): ("create_tag", CHOICE),
    Face("sql", "create_tag_from_watermark"): ("create_tag", CHOICE),
    Face("sql", "rollback_to_snapshot"): ("rollback_to", CHOICE),
    Face("sql", "fast_forward"): ("fast_forward", "takes Iceberg's arguments too"),
    Face("sql", "create_branch"): ("create_branch", "of a tag or empty, as other engines have it"),
    Face("cli", "branch create"): ("create_branch", TELLS),
    Face("sql", "delete_branch"): ("delete_branch", SEVERAL),
    Face("sql", "delete_tag"): ("delete_tag", SEVERAL),
    Face("cli", "branch delete"): ("delete_branch", TELLS),
    Face("cli", "branch rename"): ("rename_branch", TELLS),
    Face("cli", "branch fast-forward"): ("fast_forward", "says itself what it would be warned of"),
    Face("cli", "tag delete"): ("delete_tag", TELLS),
    Face("cli", "consumer reset"): ("reset_consumer", TELLS),
    Face("cli", "consumer clear"): ("clear_consumers", "by names or by a time"),
    Face("cli", "doctor"): ("doctor", TELLS),
    Face("cli", "orphans"): ("remove_orphan_files", "lists unless told to delete"),
    Face("sql", "remove_orphan_files"): ("remove_orphan_files", "takes a whole database too"),
    Face("sql", "expire_changelogs"): ("expire_changelogs", "can be told to drop all"),
}
"""Faces of verbs that are written by hand, and why."""

LACKING = {
    ("compact_manifest", "python"): "a write does it; engines of the format have the procedure",
    ("compact_manifest", "cli"): "a write does it; engines of the format have the procedure",
    ("doctor", "sql"): "SELECT has system tables of what it looks at",
    ("expire_changelogs", "cli"): "goes along with keytide expire",
    ("expire_consumers", "cli"): "keytide consumer clear --older-than",
    ("mend_snapshots", "cli"): "done once in the life of a table; SQL's CALL is at hand there",
}
"""Verbs that cannot be called in some place, and why."""

ROWS = "reads or writes rows"
LOOKS = "only looks, and has nothing to say of how"
OTHERS: Mapping[str, Mapping[str, str]] = {
    "python": {
        "write overwrite delete update merge scan get get_many why changes follow truncate": ROWS,
        "snapshots history tags branches branch consumers plot verify kafka_lag": LOOKS,
        "close": "waits for what this process does, and is of no use to SQL or a command",
        "alter": "takes any number of changes",
        "add_constraint drop_constraint": "are ALTER TABLE in SQL, as alter is",
        "compact rescale rewrite_file_index restore": f"{PLACES}, and {ENGINE}",
    },
    "sql": {
        "why": ROWS,
        "set_current_snapshot": f"restores, and {CHOICE}",
        "rewrite_data_files rewrite_position_delete_files": "compact, with Iceberg's arguments",
        "drop_partition compact compact_database rescale rewrite_file_index": PLACES,
        "restore rollback_to_as_latest": f"{PLACES}, and {CHOICE}",
        "trigger_tag_automatic_creation": "does what every commit does",
        "refresh": "is for tables that others keep",
        "adopt_delta adopt_iceberg adopt_parquet": "make a table",
    },
    "cli": {
        "ls describe scan get why snapshots history explain sql ingest": ROWS,
        "ui": "shows a lake until somebody ends it",
        "verify|tag ls|consumer ls|branch ls|lag": LOOKS,
        "upsert-estimate": "is about no table yet",
        "compact rewrite-file-index": f"{PLACES}, and {ENGINE}",
        "restore": f"{PLACES}, and {CHOICE}",
    },
}
"""What is made of no verb that all places could share, and why."""

SPELLINGS = {
    "branch": "name", "consumer_id": "name", "tag": "name", "from_branch": "name",
    "target_tag": "new_name", "to_branch": "new_name", "snapshot": "snapshot_id",
    "next_snapshot_id": "next_snapshot", "including_consumers": "including",
    "excluding_consumers": "excluding", "expire_strategy": "strategy",
}  # fmt: skip
"""What SQL calls parameters of verbs."""

LEFT_OUT = {Face("sql", "expire_tags"): {"dry_run"}}
"""Parameters that engines of the format do not have."""

OTHER_DEFAULTS = {(Face("sql", "remove_orphan_files"), "dry_run"): "as engines of the format do"}


def others(where: str) -> set[str]:
    return {name for names in OTHERS[where]
            for name in (names.split("|") if "|" in names else names.split())}  # fmt: skip


def parameters(face: Face, verb: Callable[..., Any]) -> dict[str, Any]:
    """What a face takes beside the table, by the names of its verb, with defaults."""
    found = inspect.signature(FACES[face]).parameters.values()
    beside = {"self", "catalog", "table", "warehouse", "format"}
    spelt = {sql: name for sql, name in SPELLINGS.items() if sql not in declared(verb)}
    spelt = spelt if face.where == "sql" else {}
    return {spelt.get(p.name, p.name): p.default for p in found if p.name not in beside}


def declared(verb: Callable[..., Any]) -> dict[str, Any]:
    return {p.name: p.default for p in [*inspect.signature(verb).parameters.values()][1:]}


def test_every_face_is_made_of_a_verb_or_has_a_reason() -> None:
    for where in ("python", "sql", "cli"):
        made, written = ({face.name for face in each if face.where == where}
                         for each in (MADE, WRITTEN))  # fmt: skip
        assert not made & written, "made by now"
        assert {f.name for f in FACES if f.where == where} == made | written | others(where)


def test_every_verb_can_be_called_everywhere_or_has_a_reason() -> None:
    assert len(VERBS) > 20
    there = {(verb.__name__, face.where) for face, verb in MADE.items()}
    there |= {(verb, face.where) for face, (verb, _) in WRITTEN.items()}
    wanted = {(verb, where) for verb in VERBS for where in ("python", "sql", "cli")}
    assert wanted - there == set(LACKING)


@pytest.mark.parametrize("face", MADE, ids=" ".join)
def test_made_face_takes_what_its_verb_takes(face: Face) -> None:
    verb = MADE[face]
    wanted = declared(verb)
    left_out = LEFT_OUT.get(face, set())
    assert parameters(face, verb) == {n: d for n, d in wanted.items() if n not in left_out}
    assert all(wanted[name] is not inspect.Parameter.empty for name in left_out)


@pytest.mark.parametrize("face", WRITTEN, ids=" ".join)
def test_written_face_has_the_defaults_of_its_verb(face: Face) -> None:
    verb = VERBS[WRITTEN[face][0]]
    wanted = declared(verb)
    found = {n: d for n, d in parameters(face, verb).items() if n in wanted}
    differing = {n for n, default in found.items() if default not in (wanted[n], _REQUIRED)}
    assert differing == {name for other, name in OTHER_DEFAULTS if other == face}


_REQUIRED = inspect.Parameter.empty


@pytest.mark.parametrize("name", [n for n in METHODS if Face("python", n) in MADE])
def test_method_shows_itself_as_its_verb_does(name: str) -> None:
    method, verb = METHODS[name], MADE[Face("python", name)]
    assert inspect.getdoc(method) == inspect.getdoc(verb)
    assert (method.__name__, method.__qualname__) == (name, f"Table.{name}")
    assert next(iter(inspect.signature(method).parameters)) == "self"


# -- what they give --------------------------------------------------------------------------------

GIVEN: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "compact": ({}, "compact('t')", "compact t"),
    "convert": ({"upsert_mode": "none"}, "convert('t', 'none')", "convert t --upsert-mode none"),
    "expire_changelogs": ({}, "expire_changelogs('t')", ""),
    "expire_partitions": (
        {"expiration_time": "1 d"}, "expire_partitions('t', '1 d')",
        "expire-partitions t --expiration-time 1d",
    ),
    "expire_snapshots": ({}, "expire_snapshots('t')", "expire t"),
    "fast_forward": ({"name": "b"}, "", "branch fast-forward t b"),
    "mend_snapshots": ({}, "mend_snapshots('t')", ""),
    "publish": ({}, "publish('t')", "publish t"),
    "purge_files": ({"dry_run": True}, "purge_files('t', true)", "purge-files t --dry-run"),
    "remove_orphan_files": ({}, "remove_orphan_files('t')", ""),
    "rescale": ({}, "rescale('t')", ""),
    "restore": ({"to": 1}, "restore('t', version => 1)", "restore t --snapshot-id 1"),
    "rewrite_file_index": (
        {}, "rewrite_file_index('t')", "rewrite-file-index t",
    ),
    "rollback_to": ({"to": 1, "dry_run": True}, "", "rollback t --snapshot-id 1 --dry-run"),
}  # fmt: skip
"""Calls of what gives rows; no text where SQL answers in the words of other engines."""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("lake"))
    lake = kt.connect(folder)
    columns = pa.schema([("k", pa.int64()), ("dt", pa.string())])
    options = {"bucket": "1", "file-index.bloom-filter.columns": "k", "publish": "delta"}
    table = lake.create_table("t", columns, ["k", "dt"], ["dt"], options=options)
    table.write([{"k": 1, "dt": "2999-01-01"}])
    table.create_branch("b")
    return folder


def test_calls_name_all_that_gives_rows() -> None:
    giving = {
        name
        for name, call in METHODS.items()
        if issubclass(given_by(call), Record) or hasattr(given_by(call), "to_arrow")
    }
    assert giving - {"write", "overwrite", "truncate", "scan", "changes", "why"} == set(GIVEN)


def given_by(call: Callable[..., Any]) -> type:
    found = inspect.signature(inspect.unwrap(call), eval_str=True).return_annotation
    return found if isinstance(found, type) else type(None)


@pytest.mark.parametrize("name", GIVEN)
def test_rows_have_the_same_columns_everywhere(warehouse: str, name: str) -> None:
    arguments, called, typed = GIVEN[name]
    lake = kt.connect(warehouse)
    columns = getattr(lake.table("t"), name)(**arguments).to_arrow().column_names
    if called:
        assert lake.sql(f"CALL sys.{called}").to_arrow().column_names == columns
    if typed:
        command = [*typed.split(), "-w", warehouse, "--format", "csv"]
        done = CliRunner().invoke(app, command)
        assert done.output.splitlines()[0].replace('"', "").split(",") == columns
