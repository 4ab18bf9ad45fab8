#!/bin/sh
# Creates .venv-sail: Sail, a server for Spark Connect without a JVM, with Keytide and a Spark client
# that Sail accepts, which is older than Keytide's own.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

python=$(usable_python 10 14) || fail "Sail needs Python 3.10 to 3.14"
say "installing Sail into .venv-sail"
quietly environment_of .venv-sail "$python" requirements-sail.lock
touch .venv-sail/.ready
