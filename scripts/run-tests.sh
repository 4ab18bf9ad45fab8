#!/bin/sh
# run-tests.sh PYTEST...: every test but those of `make soak`, in two runs. Sessions of Spark need both cores, so their tests
# come last, in two processes with a session each; of the others three processes, which often wait
# for a process of their own. Both runs happen, whatever the first one says.

# What tests write lies in memory where there is room: they make thousands of commits, and would
# wait for the disk at each.
NEEDED_KB=4000000
if [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -ge "$NEEDED_KB" ] 2>/dev/null; then
    TMPDIR=$(mktemp -d /dev/shm/keytide-tests.XXXXXX) && export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
    trap 'exit 1' HUP INT TERM
fi

# Their tables are tiny, so threads of Polars are woken for nothing, and cost a sixth of the time.
POLARS_MAX_THREADS=1 "$@" -n 3 --dist worksteal -m "(not spark or driver) and not soak"
status=$?
# Only files with such a test are looked at: to collect the others takes seconds.
# shellcheck disable=SC2046  # the names are to be words
"$@" -n 2 --dist loadfile -m "spark and not driver and not soak" \
    $(grep -rlE 'mark\.spark\b' --include='test_*.py' tests) || status=$?
exit $status
