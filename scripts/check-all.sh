#!/usr/bin/env bash
# `make test`, and then `make test-others`, which runs the cases that `make test` leaves out on this
# day. Both run, also if the first fails. The summary lines of pytest are printed last, and it fails if
# either of the two does.
set -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
output=$(mktemp)
trap 'rm -f "$output"' EXIT
# One day for both, although midnight may come between them.
day=$(date +%j)

status=0
KEYTIDE_CASES=$day make test 2>&1 | tee "$output" || status=1
KEYTIDE_CASES=not-$day make test-others 2>&1 | tee -a "$output" || status=1
grep -E '(passed|failed|errors?|deselected|no tests ran).* in [0-9.]+s' "$output"
exit $status
