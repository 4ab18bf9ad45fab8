#!/bin/sh
# Makes .venv-pypaimon: pypaimon pins old releases of pyarrow and polars, so it gets an
# environment of its own, and the interoperability tests run it as a separate process.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

if [ "${KEYTIDE_SKIP_PYPAIMON:-}" = 1 ]; then
    say "pypaimon is left out (KEYTIDE_SKIP_PYPAIMON=1); its tests are skipped"
    exit 0
fi

python=$(usable_python 10 13) || {
    say "pypaimon needs Python 3.10 to 3.13 and none was found; its tests are skipped"
    exit 0
}

make_environment() {
    rm -rf .venv-pypaimon
    if .venv/bin/python -m uv --version >/dev/null 2>&1; then
        pass_pip_settings_to_uv .venv/bin/python
        .venv/bin/python -m uv venv -p "$python" .venv-pypaimon &&
            .venv/bin/python -m uv pip install -p .venv-pypaimon/bin/python \
                -r requirements-pypaimon.lock
    else
        "$python" -m venv --without-pip .venv-pypaimon &&
            .venv/bin/python -m pip --python .venv-pypaimon/bin/python install \
                -r requirements-pypaimon.lock
    fi
}

say "installing pypaimon into .venv-pypaimon"
quietly make_environment || fail \
    "pypaimon could not be installed; to test without it, set KEYTIDE_SKIP_PYPAIMON=1"
touch .venv-pypaimon/.ready
