#!/bin/sh
# Creates .venv with Keytide (editable), its spark extra and the development tools.
# Safe to repeat: a working environment is updated, not replaced.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

main() {
    .venv/bin/python -c '' 2>/dev/null || make_environment
    install_requirements
    touch .venv/.ready
}

make_environment() {
    python=$(usable_python 10 99) || fail \
        "Python 3.10 or newer is needed; found $(python3 -V 2>&1 || true)." \
        "Install it (Debian, Ubuntu: apt-get install python3 python3-venv)" \
        "or name one: make venv PYTHON=/path/to/python"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say "creating .venv with Python $version"
    for way in with_venv with_own_pip with_virtualenv with_uv; do
        rm -rf .venv
        if $way "$python" >/dev/null 2>&1; then return; fi
    done
    rm -rf .venv
    if apt_install "python$version-venv" python3-venv && quietly with_venv "$python"; then return; fi
    rm -rf .venv
    fail "$python cannot make an environment: its venv module or pip is missing." \
        "Run as root: apt-get install python$version-venv"
}

with_venv() { "$1" -m venv .venv; }
with_own_pip() { # venv is there, the wheel of pip inside it is not
    "$1" -m pip --version && "$1" -m venv --without-pip .venv &&
        "$1" -m pip --python .venv/bin/python install pip
}
with_virtualenv() { "$1" -m virtualenv .venv || virtualenv -p "$1" .venv; }
with_uv() { uv venv --seed -p "$1" .venv; }

install_requirements() {
    say "installing Keytide and its development tools into .venv"
    pass_pip_settings_to_uv .venv/bin/python
    if has_uv && install_with .venv/bin/python -m uv pip install -q -p .venv/bin/python; then
        return
    fi
    say "uv failed; installing with pip instead, which takes a minute or more"
    quietly install_with .venv/bin/python -m pip install || fail \
        "the packages of requirements-dev.lock could not be installed;" \
        "check the network or the package index that pip is set to"
}

# uv installs in seconds what takes pip a minute. If uv is not available, pip is used.
has_uv() {
    .venv/bin/python -m uv --version >/dev/null 2>&1 ||
        .venv/bin/python -m pip install -q uv >/dev/null 2>&1
}

install_with() { "$@" --no-deps -r requirements-dev.lock -e .; } # the lock is complete

main
