#!/bin/sh
# Makes .venv-duckdb: a DuckDB whose extensions for Delta Lake and Apache Iceberg come as packages,
# for tests that have it read what is published. Keytide itself runs on a newer one.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

if [ "${KEYTIDE_SKIP_DUCKDB:-}" = 1 ]; then
    say "DuckDB is left out as a reader (KEYTIDE_SKIP_DUCKDB=1)"
    exit 0
fi

python=$(usable_python 10 14) || {
    say "DuckDB as a reader needs Python 3.10 to 3.14 and none was found; it is left out"
    exit 0
}

say "installing DuckDB and its extensions into .venv-duckdb"
quietly environment_of .venv-duckdb "$python" requirements-duckdb.lock || fail \
    "DuckDB could not be installed; to test without it, set KEYTIDE_SKIP_DUCKDB=1"
touch .venv-duckdb/.ready
