"""Lists public names of unknown type that `pyright --outputjson --verifytypes keytide` has found.

Run with the file that it wrote; the exit code is 1 where there is such a name. Types that checkers
infer are known ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keytide


def unknown(symbols: list[dict[str, Any]]) -> Iterator[str]:
    """The public names whose types pyright does not know, with what it says of them."""
    homes = [f"{home}.{name}" for home, names in keytide._HOMES.items() for name in names]
    for symbol in symbols:
        name, known = symbol["name"], symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        is_public = any(f"{name}.".startswith(f"{home}.") for home in homes)
        # Only Lake makes tables.
        if is_public and not known and not name.endswith(".__init__"):
            yield f"{name}: " + "; ".join(each["message"] for each in symbol["diagnostics"])


def main() -> None:
    """Judge the report whose path is the first argument."""
    report = json.loads(Path(sys.argv[1]).read_text())["typeCompleteness"]
    found = [*unknown(report["symbols"])]
    print(
        "\n".join(found) or f"types of all public names are known: {len(report['symbols'])} judged"
    )
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
