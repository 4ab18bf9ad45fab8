#!/bin/sh
# run-tests.sh PYTEST...: every test, in two runs side by side. The Spark tests share one session,
# so they share one process, and often wait for it; the others take two processes, which give way,
# so that neither core is idle at the end. Both runs happen, whatever the other one says.
set -u
spark_output=$(mktemp)
spark_run=
trap 'kill $spark_run 2>/dev/null; rm -f "$spark_output"' EXIT
trap 'exit 130' INT TERM

export POLARS_MAX_THREADS=1 # three processes share two cores already

"$@" -m spark >"$spark_output" 2>&1 &
spark_run=$!
nice -n 5 "$@" -n 2 --dist worksteal -m "not spark"
status=$?
wait "$spark_run" || status=$?
spark_run=
cat "$spark_output"
exit $status
