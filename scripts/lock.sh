#!/bin/sh
# Writes requirements-dev.lock and the lock files for benchmarks, documentation, pypaimon and DuckDB as
# readers, and Sail: exact pins of the latest versions that pyproject.toml allows, for every supported Python.
# The pins name no index, so each machine uses its own.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

uv="$PWD/.venv/bin/python -m uv"
pass_pip_settings_to_uv .venv/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp pyproject.toml "$scratch"

# Resolved in a separate folder, because uv.lock would name the index that it was created from.
$uv lock -q --directory "$scratch"

pins() { # FILE GROUP
    {
        header
        $uv export -q --directory "$scratch" --frozen --no-default-groups --group "$2" \
            --all-extras --no-hashes --no-annotate --no-header --no-emit-project
    } >"$1"
}

header() { echo "# Written by \`make lock\`; do not edit."; }

pins requirements-dev.lock dev
pins requirements-bench.lock bench

{
    header
    $uv export -q --directory "$scratch" --frozen --only-group docs \
        --no-hashes --no-annotate --no-header
} >requirements-docs.lock

packages() { # FILE REQUIREMENT...
    file=$1
    shift
    {
        header
        printf '%s\n' "$@" | $uv pip compile -q - --universal --python-version 3.10 \
            --no-annotate --no-header --no-emit-index-url
    } >"$file"
}

packages requirements-pypaimon.lock "pypaimon==2.1.*"
# The latest release whose extensions are available as packages.
packages requirements-duckdb.lock "duckdb==1.5.*" duckdb-extension-delta \
    duckdb-extension-iceberg duckdb-extension-avro
# Sail refuses clients of later releases of Spark.
{
    header
    printf '%s\n' "pysail==0.7.*" "pyspark==4.2.*" | $uv pip compile -q - pyproject.toml \
        --extra spark-connect --universal --python-version 3.10 \
        --no-annotate --no-header --no-emit-index-url
} >requirements-sail.lock
