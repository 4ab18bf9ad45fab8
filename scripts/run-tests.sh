#!/bin/sh
# run-tests.sh PYTEST...: every test but those of `make soak`, in two runs. Sessions of Spark need both cores, so their tests
# come last, in two processes with a session each; of the others three processes, which often wait
# for a disk or for a process of their own. Both runs happen, whatever the first one says.
"$@" -n 3 --dist worksteal -m "(not spark or driver) and not soak"
status=$?
"$@" -n 2 --dist loadfile -m "spark and not driver and not soak" || status=$?
exit $status
