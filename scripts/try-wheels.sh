#!/bin/sh
# try-wheels.sh [PYTHON...]: builds the wheel. For each Python, installs it into a separate environment
# without extras, and runs the first example of the README and the command. Default: every Python from
# 3.10 on that is found. Prints the size of each environment and the CPU time of `import keytide`.
# Fails if one of them fails.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

found_pythons() {
    for minor in 10 11 12 13 14 15; do
        for python in "python3.$minor" "$HOME"/.pyenv/versions/3."$minor".*/bin/python; do
            "$python" -c '' 2>/dev/null && { echo "$python"; break; }
        done
    done
}

try() { # PYTHON
    environment="$SCRATCH/$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    "$1" -m venv "$environment"
    quietly "$environment/bin/python" -m pip install -q "$WHEEL"
    mkdir "$environment/work"
    .venv/bin/python - "$environment/example.py" <<'END'
import re, sys
from pathlib import Path
blocks = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
Path(sys.argv[1]).write_text(blocks[0])
END
    (cd "$environment/work" &&
        quietly ../bin/python ../example.py &&
        quietly ../bin/keytide verify lake/shop.db/orders)
    "$environment/bin/python" - "$environment" <<'END'
import os, sys
before = sum(os.times()[:2])
import keytide
took = sum(os.times()[:2]) - before
size = sum(os.lstat(os.path.join(top, f)).st_size for top, _, files in os.walk(sys.argv[1]) for f in files)
version = sys.version.split()[0]
print(f"Python {version}: example and command ran; {size / 1e6:.0f} MB, import {took:.2f} s of CPU")
END
}


quietly .venv/bin/python -m pip wheel -q --no-deps -w "$SCRATCH" .
WHEEL=$(ls "$SCRATCH"/keytide-*.whl)
say "built $(basename "$WHEEL")"
for each in ${*:-$(found_pythons)}; do
    try "$each"
done
