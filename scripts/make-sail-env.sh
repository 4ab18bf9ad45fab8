#!/bin/sh
# Creates .venv-sail: Sail, a server for Spark Connect without a JVM, with Keytide and a Spark client
# that Sail accepts, which is older than Keytide's own.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

if [ "${KEYTIDE_SKIP_SAIL:-}" = 1 ]; then
    say "Sail is not installed (KEYTIDE_SKIP_SAIL=1)"
    exit 0
fi

python=$(usable_python 10 14) || {
    say "Sail needs Python 3.10 to 3.14 and none was found; it is not installed"
    exit 0
}
say "installing Sail into .venv-sail"
quietly environment_of .venv-sail "$python" requirements-sail.lock || fail \
    "Sail could not be installed; to test without it, set KEYTIDE_SKIP_SAIL=1"
touch .venv-sail/.ready
