"""Tables of Java Paimon 2.0 with features that this release may not know.

`tests/data/features.tar.xz` has each of them, and the rows that Java reads from it:

    .venv/bin/python tests/interop/feature_tables.py --pack tests/data/features.tar.xz
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from java_judge import JAVA_RELEASES, JavaGateway, JavaPaimon

import keytide as kt
from feature_cases import FEATURE_TABLES, OUTSIDE, FeatureTable, as_json  # behind the path
from keytide.types import RowType

__all__ = ["RELEASE", "make"]

RELEASE = "java-2.0.0"


def make(java: JavaPaimon, table: str, case: FeatureTable) -> pa.Table | None:
    """Make a table, and return the rows that Java reads. None if Java refuses to read them."""
    given = {"bucket": "1", **case.options}
    outside = _outside(Path(java.warehouse.removeprefix("file://")))
    options = {key: value.replace(OUTSIDE, outside) for key, value in given.items()}
    java.create(table, case.columns, case.key, case.partition_by, options)
    for batch in case.batches:
        if batch:
            _write(java, table, case, batch)
    if case.branch_option:
        _continue_in_branch(java, table, case)
    try:
        return java.read(table)
    except Exception:  # a table whose catalog has to be asked, for example
        return None


def _continue_in_branch(java: JavaPaimon, table: str, case: FeatureTable) -> None:
    """Rows of a branch that the table's option names."""
    java.open(table).createBranch("side")
    _write(java, f"{table}$branch_side", case, (7, 8), "20260102")
    _write(java, f"{table}$branch_side", case, (9,), "20260101")
    change = java.gateway.paimon.schema.SchemaChange.setOption(case.branch_option, "side")
    changes = java.gateway.jvm.java.util.Collections.singletonList(change)
    java.open(table).schemaManager().commitChanges(changes)


def _write(
    java: JavaPaimon, table: str, case: FeatureTable, batch: tuple[Any, ...],
    partition: str = "20260101",
) -> None:  # fmt: skip
    opened = java.open(table)
    kinds = {name: kt.parse_sql_type(text) for name, text in case.columns.items()}
    with java._writing(opened) as write:
        for number, value in enumerate(batch, start=1):
            given = {"k": number, "p": partition, "v": f"v{len(batch)}"}
            cells = [
                java._values.java(pa.scalar(given[name], kind.to_arrow()), kind)
                for name, kind in kinds.items()
                if name != "x"
            ]
            write.write(java._values._row([*cells, _feature(java, value, kinds["x"])]))


def _feature(java: JavaPaimon, value: Any, kind: Any) -> Any:
    if getattr(kind, "root", "") == "VARIANT" and value is not None:
        return java.gateway.paimon.data.variant.GenericVariant.fromJson(value)
    if isinstance(kind, RowType):
        cells = zip(value, kind.fields, strict=True)
        return java._values._row([_feature(java, each, f.type) for each, f in cells])
    return java._values.java(pa.scalar(value, kind.to_arrow()), kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pack", type=Path, required=True)
    archive: Path = parser.parse_args().pack
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "features"
        gateway = JavaGateway([JAVA_RELEASES[RELEASE]], Path(folder) / "scratch")
        java = JavaPaimon(str(place), gateway, RELEASE)
        rows = {}
        for name, case in FEATURE_TABLES.items():
            rows[name] = as_json(make(java, name, case))
            print(name, rows[name], flush=True)
        gateway.close()
        _neutral(place)
        (place / "rows.json").write_text(json.dumps(rows, indent=1))
        with tarfile.open(archive, "w:xz") as made:
            for path in sorted(place.rglob("*")):
                if path.is_file() and path.suffix != ".crc":
                    made.add(path, str(path.relative_to(folder)), filter=_nameless)


def _outside(warehouse: Path) -> str:
    """A folder next to the databases whose path is as long as `OUTSIDE`."""
    return f"{warehouse}/outside".ljust(len(OUTSIDE), "-")


def _neutral(place: Path) -> None:
    """Have the files name `OUTSIDE` in place of a folder of this machine."""
    outside = Path(_outside(place))
    for path in place.rglob("default.db/external_paths/*/*"):
        path.write_bytes(path.read_bytes().replace(str(outside).encode(), OUTSIDE.encode()))
    outside.rename(place / "outside")


def _nameless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member of an archive that tells of nobody."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
