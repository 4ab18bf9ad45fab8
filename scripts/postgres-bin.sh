#!/bin/sh
# Prints the folder of PostgreSQL's programs (initdb, postgres), with which tests start a server.
# Checks PATH and Debian's location. If they are missing, it installs them if permitted, and otherwise
# says how to.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

main() {
    find_postgres && return
    say "no PostgreSQL server found (some tests start one)"
    apt_install postgresql && find_postgres && return
    fail "install PostgreSQL, for example as root: apt-get update && apt-get install postgresql"
}

# A program may be a link into the folder that contains the others.
find_postgres() {
    for initdb in "$(command -v initdb || true)" /usr/lib/postgresql/*/bin/initdb; do
        [ -x "$initdb" ] || continue
        dirname "$(readlink -f "$initdb")"
        return
    done
    return 1
}

main
