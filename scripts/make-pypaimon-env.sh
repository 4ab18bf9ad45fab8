#!/bin/sh
# Creates .venv-pypaimon: pypaimon pins old releases of pyarrow and polars, so it gets a separate
# environment, and the interoperability tests run it as a separate process.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

if [ "${KEYTIDE_SKIP_PYPAIMON:-}" = 1 ]; then
    say "pypaimon is not installed (KEYTIDE_SKIP_PYPAIMON=1); its tests are skipped"
    exit 0
fi

python=$(usable_python 10 13) || {
    say "pypaimon needs Python 3.10 to 3.13 and none was found; its tests are skipped"
    exit 0
}

say "installing pypaimon into .venv-pypaimon"
quietly environment_of .venv-pypaimon "$python" requirements-pypaimon.lock || fail \
    "pypaimon could not be installed; to test without it, set KEYTIDE_SKIP_PYPAIMON=1"
touch .venv-pypaimon/.ready
