#!/bin/sh
# run-tests.sh PYTEST...: every test but those of `make soak`, `make kafka`, `make metastore`, `make clouds`, `make docs` and `make browser`. Those with a session of Spark have a
# process of their own, since a session takes long to begin and works on all cores; the others go on
# beside it in three processes, which often wait for a process of their own. What it says comes last.
# All of it runs, whatever fails.

# What tests write lies in memory where there is room: they make thousands of commits, and would
# wait for the disk at each.
NEEDED_KB=4000000
if [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -ge "$NEEDED_KB" ] 2>/dev/null; then
    PARENT=/dev/shm
fi
SCRATCH=$(mktemp -d "${PARENT:-${TMPDIR:-/tmp}}/keytide-tests.XXXXXX") || exit 1
mkdir "$SCRATCH/local" "$SCRATCH/spark"
trap 'rm -rf "$SCRATCH"' EXIT
trap 'kill "$SPARK" 2>/dev/null; exit 1' HUP INT TERM

# Their tables are tiny, so threads of Polars are woken for nothing, and cost a sixth of the time.
export POLARS_MAX_THREADS=1
# Only files with such a test are looked at: to collect the others takes seconds.
# shellcheck disable=SC2046  # the names are to be words
TMPDIR="$SCRATCH/spark" "$@" -n 0 -m "spark and not driver and not soak and not kafka and not metastore and not clouds and not site and not browser" \
    $(grep -rlE 'mark\.spark\b' --include='test_*.py' tests) > "$SCRATCH/said" 2>&1 &
SPARK=$!
TMPDIR="$SCRATCH/local" "$@" -n 3 --dist worksteal -m "(not spark or driver) and not soak and not kafka and not metastore and not clouds and not site and not browser"
status=$?
wait "$SPARK" || status=$?
cat "$SCRATCH/said"
exit $status
