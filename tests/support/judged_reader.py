"""Keytide as a reader for the judge: prints the rows of each table that it is asked for."""

from __future__ import annotations

import json
import sys

import keytide as kt
from keytide.base.text import json_lines

__all__: list[str] = []


def read(asked: dict[str, str]) -> bytes:
    """The rows of a table as lines of JSON."""
    table = kt.connect(asked["warehouse"]).table(asked["table"])
    if "branch" in asked:
        table = table.branch(asked["branch"])
    snapshot_id = None if "snapshot" not in asked else int(asked["snapshot"])
    rows = table.scan(snapshot_id=snapshot_id, tag=asked.get("tag")).to_arrow()
    return b"".join(map(json_lines, rows.to_batches()))


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        try:
            answer = read(json.loads(line))
        except kt.KeytideError as error:
            answer = json.dumps(str(error)).encode() + b"\n"
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
