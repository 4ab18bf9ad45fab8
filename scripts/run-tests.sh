#!/bin/sh
# run-tests.sh PYTEST...: runs every test except those of `make soak`, `make kafka`, `make metastore`,
# `make clouds`, `make standalone`, `make docs` and `make browser`. Tests with a Spark session run in
# a separate process, because a session takes long to start and uses all cores, and after them, in
# another one, those whose executors are processes of their own. The others run in parallel in three
# processes, which often wait for subprocesses. The output of the Spark tests comes last. Everything
# runs, even if something fails.

# Tests write to memory if there is enough space: they make thousands of commits, and would wait for
# the disk at each.
NEEDED_KB=4000000
if [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -ge "$NEEDED_KB" ] 2>/dev/null; then
    PARENT=/dev/shm
fi
SCRATCH=$(mktemp -d "${PARENT:-${TMPDIR:-/tmp}}/keytide-tests.XXXXXX") || exit 1
mkdir "$SCRATCH/local" "$SCRATCH/spark"
trap 'rm -rf "$SCRATCH"' EXIT
trap 'kill "$SPARK" 2>/dev/null; exit 1' HUP INT TERM

# Their tables are tiny, so waking Polars threads is useless and costs a sixth of the time.
export POLARS_MAX_THREADS=1
# On some days, no case of a cluster is left out.
NO_TESTS=5
# Only files with such a test are named, because collecting the others takes seconds.
# shellcheck disable=SC2046  # the names must be split into words
spark_tests() {
    TMPDIR="$SCRATCH/spark" "$@" -n 0 -m "spark and not driver and not soak and not kafka and not metastore and not clouds and not standalone and not site and not browser" \
        $(grep -rlE 'mark\.spark\b' --include='test_*.py' tests)
    of_session=$?
    TMPDIR="$SCRATCH/spark" "$@" -n 0 -m cluster tests/cluster
    of_cluster=$?
    if [ $of_cluster -ne 0 ] && [ $of_cluster -ne $NO_TESTS ]; then return $of_cluster; fi
    return $of_session
}
spark_tests "$@" > "$SCRATCH/said" 2>&1 &
SPARK=$!
TMPDIR="$SCRATCH/local" "$@" -n 3 --dist worksteal -m "(not spark or driver) and not cluster and not soak and not kafka and not metastore and not clouds and not standalone and not site and not browser"
status=$?
wait "$SPARK" || status=$?
cat "$SCRATCH/said"
exit $status
