"""Runs all schedules of all pairs of operations, or of some, and says what part of it is done.

    python tests/schedules/schedules_run.py --preemptions 2 --faults --minutes 60 --results done

A case in the file of results is not run again. The exit code is 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

# Tables of a few rows gain nothing from threads, and each process has a core.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

from schedule_search import Case  # noqa: E402  # after the path is set
from schedule_worlds import KINDS, OPERATIONS, supports  # noqa: E402

Result = dict[str, object]


def run_case(case: Case, preemptions: int, fates: str) -> Result:
    """The number of schedules of a case, and those with a wrong result."""
    warnings.simplefilter("ignore")
    began, count, wrong = time.monotonic(), 0, []
    for schedule in itertools.chain(case.schedules(preemptions), case.faults(fates)):
        count += 1
        finding = case.check(schedule)
        if finding is not None:
            wrong.append(str(finding))
    took = round(time.monotonic() - began, 1)
    return {"case": str(case), "schedules": count, "seconds": took, "wrong": wrong}


def cases(kinds: list[str], operations: list[str], actors: int) -> list[Case]:
    """Every choice of operations on every kind of table that supports them."""
    return [
        Case(kind, chosen)
        for kind in kinds
        for chosen in itertools.combinations_with_replacement(operations, actors)
        if all(supports(kind, each) for each in chosen)
    ]


def main() -> int:
    """Run the cases, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS])
    parser.add_argument("--operations", nargs="+", default=[*OPERATIONS], choices=[*OPERATIONS])
    parser.add_argument("--actors", type=int, default=2, choices=(2, 3))
    parser.add_argument("--preemptions", type=int, default=1, choices=(0, 1, 2))
    parser.add_argument("--faults", action="store_true", help="also let every step fail")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="file of the cases that are done")
    given = parser.parse_args()
    every = cases(given.kinds, given.operations, given.actors)
    known = (
        given.results.read_text().splitlines() if given.results and given.results.exists() else []
    )
    done = {json.loads(line)["case"] for line in known}
    left = [case for case in every if str(case) not in done]
    end, wrong, count = time.monotonic() + 60 * given.minutes, 0, 0
    with ProcessPoolExecutor(given.processes) as pool:
        fates = "!?~<^v-" if given.faults else ""
        futures = [pool.submit(run_case, case, given.preemptions, fates) for case in left]
        for future in as_completed(futures):
            if future.cancelled():
                continue
            result = future.result()
            count += int(str(result["schedules"]))
            for text in result["wrong"]:  # type: ignore[attr-defined]  # a list
                wrong += 1
                print(text, "\n")
            if given.results:
                with given.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
            if time.monotonic() > end:
                for other in futures:
                    other.cancel()
    made = sum(future.done() and not future.cancelled() for future in futures) + len(done)
    print(f"{count} schedules in this run, {made} of {len(every)} cases done, {wrong} wrong")
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
