#!/bin/sh
# Finds Debian's chromium, or installs it with fonts with apt. Installs playwright, which drives the
# browser, and axe-core, which checks pages, into .venv-browser, with pip and npm. For `make browser`.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

PLAYWRIGHT="playwright==1.65.*"
AXE="axe-core@4.14.1"

command -v chromium >/dev/null 2>&1 || apt_install chromium || fail "there is no chromium, and no apt that installs it"
if ! fc-list 2>/dev/null | grep -qi 'noto sans'; then
    apt_install fonts-noto-core || say "letters of some scripts may be shown as boxes: fonts-noto-core could not be installed"
fi
mkdir -p .venv-browser
say "fetching $PLAYWRIGHT and $AXE into .venv-browser"
rm -rf .venv-browser/python
quietly .venv/bin/python -m pip install --target .venv-browser/python "$PLAYWRIGHT"
command -v npm >/dev/null 2>&1 || fail "axe-core needs npm, and there is none"
quietly npm install --no-audit --no-fund --prefix .venv-browser "$AXE"
touch .venv-browser/.ready
