#!/bin/sh
# run-tests.sh PYTEST...: every test, in two runs. Most Spark tests share one session, so they
# share one process; the others take two. Both runs happen, whatever the first one says.
"$@" -n 2 --dist worksteal -m "not spark or driver"
status=$?
"$@" -m "spark and not driver" || status=$?
exit $status
