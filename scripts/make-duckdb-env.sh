#!/bin/sh
# Creates .venv-duckdb: a DuckDB whose extensions for Delta Lake and Apache Iceberg are available as
# packages, for tests that read publications. Keytide itself runs on a newer one.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

if [ "${KEYTIDE_SKIP_DUCKDB:-}" = 1 ]; then
    say "DuckDB is not installed as a reader (KEYTIDE_SKIP_DUCKDB=1)"
    exit 0
fi

python=$(usable_python 10 14) || {
    say "DuckDB as a reader needs Python 3.10 to 3.14 and none was found; it is not installed"
    exit 0
}

say "installing DuckDB and its extensions into .venv-duckdb"
quietly environment_of .venv-duckdb "$python" requirements-duckdb.lock || fail \
    "DuckDB could not be installed; to test without it, set KEYTIDE_SKIP_DUCKDB=1"
touch .venv-duckdb/.ready
