#!/bin/sh
# user-types.sh: builds the wheel, installs it into .venv-types beside pyright and mypy, and checks
# with both, as strict as they can be, that code of users has no type error and no unknown type.
# Then pyright judges the public names themselves.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

CODE=tests/typing_of_users/user_code.py
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

main() {
    .venv-types/bin/python -c '' 2>/dev/null || .venv/bin/python -m venv --without-pip .venv-types
    quietly .venv/bin/python -m pip wheel -q --no-deps -w "$SCRATCH" .
    say "installing $(basename "$SCRATCH"/keytide-*.whl) and type checkers into .venv-types"
    quietly install_into .venv-types "$SCRATCH"/keytide-*.whl
    # Outside of the checkout, where only the installed package can be found.
    cp "$CODE" "$SCRATCH"
    printf '{"typeCheckingMode": "strict", "venvPath": "%s", "venv": ".venv-types"}\n' "$PWD" \
        >"$SCRATCH/pyrightconfig.json"
    python="$PWD/.venv-types/bin/python"
    (cd "$SCRATCH" && "$python" -m pyright . && "$python" -m mypy --strict "$(basename "$CODE")")
    (cd "$SCRATCH" && "$python" -m pyright --outputjson --verifytypes keytide --ignoreexternal) \
        >"$SCRATCH/types.json" || true # it fails for names that are not public, too
    .venv/bin/python scripts/public_types.py "$SCRATCH/types.json"
}

# pyright finds node in a package; the stubs are those that users of pyright install themselves.
install_into() { # FOLDER WHEEL
    set -- "$1" "$2" 'pyright[nodejs]==1.1.414' pyarrow-stubs==20.0.0.20260819
    environment=$1
    shift
    set -- "$@" mypy pandas pandas-stubs pyspark
    if .venv/bin/python -m uv --version; then
        pass_pip_settings_to_uv .venv/bin/python
        .venv/bin/python -m uv pip install -p "$environment/bin/python" --reinstall-package keytide \
            -c requirements-dev.lock "$@"
    else
        .venv/bin/python -m pip --python "$environment/bin/python" install --force-reinstall \
            -c requirements-dev.lock "$@"
    fi
}

main
