#!/bin/sh
# Creates .venv-docs: MkDocs with its theme, and what the tests of the site need. Keytide itself is
# only read there, not imported, so its dependencies are not installed.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

python=$(usable_python 10 14) || fail "the site needs Python 3.10 to 3.14 and none was found"

say "installing MkDocs and its theme into .venv-docs"
quietly environment_of .venv-docs "$python" requirements-docs.lock || fail \
    "the packages of requirements-docs.lock could not be installed;" \
    "check the network or the package index that pip is set to"
touch .venv-docs/.ready
