"""The doors of a table: what users call to read it, to clean it up, and to change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner

import keytide as kt
from keytide.cli.main import app

__all__ = ["CLEANING", "OF_BOTH_BRANCHES", "READING", "ROWS", "WRITING", "Door"]

ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]

Door = Callable[[kt.Lake, kt.Table], Any]


def by_command(*arguments: str) -> Door:
    def run(lake: kt.Lake, table: kt.Table) -> object:
        done = CliRunner().invoke(app, [arguments[0], table.uri, *arguments[1:]])
        if isinstance(done.exception, kt.KeytideError):
            raise done.exception
        if done.exit_code:
            raise kt.UnsupportedError(done.output)
        return None

    return run


READING: dict[str, Door] = {
    "scan": lambda _, t: t.scan().to_arrow(),
    "count": lambda _, t: t.scan().count(),
    "get": lambda _, t: t.get(1),
    "get_many": lambda _, t: t.get_many([1]),
    "why": lambda _, t: t.why(1),
    "changes": lambda _, t: t.changes(0).to_arrow(),
    "follow": lambda _, t: [*t.follow(0, timeout_seconds=0)],
    "an older snapshot": lambda _, t: t.scan(snapshot_id=1).to_arrow(),
    "SELECT": lambda lake, t: lake.sql(f"SELECT * FROM {t.name}").to_arrow(),
    "$audit_log": lambda lake, t: lake.sql(f"SELECT * FROM {t.name}$audit_log").to_arrow(),
    "publish": lambda _, t: t.publish(),
    "verify": lambda _, t: t.verify(),
    "keytide scan": by_command("scan"),
}
OF_BOTH_BRANCHES = (
    "scan",
    "count",
    "get",
    "get_many",
    "an older snapshot",
    "SELECT",
    "keytide scan",
)
"""The doors through which a reader sees the rows of two branches, if the table names another."""
CLEANING: dict[str, Door] = {
    "orphans": lambda _, t: t.remove_orphan_files(),
    "expire": lambda _, t: t.expire_snapshots(retain_max=1, retain_min=1),
    "keytide orphans": by_command("orphans"),
}
WRITING: dict[str, Door] = {
    "write": lambda _, t: t.write(ROWS),
    "overwrite": lambda _, t: t.overwrite(ROWS),
    "truncate": lambda _, t: t.truncate(),
    "delete": lambda _, t: t.delete("k = 1"),
    "update": lambda _, t: t.update({"v": "'x'"}, "k = 1"),
    "merge": lambda _, t: t.merge(ROWS, "target.k = source.k").when_matched_update_all().execute(),
    "compact": lambda _, t: t.compact(full=True),
    "restore": lambda _, t: t.restore(1),
    "INSERT": lambda lake, t: lake.sql(f"INSERT INTO {t.name} (k, v) VALUES (3, 'c')"),
    "compact_manifest": lambda lake, t: lake.sql(f"CALL sys.compact_manifest('{t.name}')"),
    "keytide compact": by_command("compact"),
}
