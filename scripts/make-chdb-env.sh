#!/bin/sh
# Creates .venv-chdb: ClickHouse as a library, as the benchmarks have it, for the judge of readers.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

say "installing chdb into .venv-chdb"
.venv/bin/python -m venv .venv-chdb
quietly .venv-chdb/bin/python -m pip install -q $(grep -E '^chdb(-core)?==' requirements-bench.lock) || {
    say "chdb could not be installed; the judge leaves ClickHouse out"
    rm -rf .venv-chdb
    exit 0
}
touch .venv-chdb/.ready
