"""Threads for short calls: used again, never waited for in a circle, bounded where asked for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from keytide.base.process import begin, side_by_side


def thread_name() -> str:
    time.sleep(0.001)
    return threading.current_thread().name


def test_results_come_in_the_order_of_the_calls() -> None:
    def late(number: int) -> int:
        time.sleep(0.02 / (number + 1))
        return number

    assert side_by_side([partial(late, n) for n in range(20)], 8) == [*range(20)]


def test_threads_are_used_again() -> None:
    seen = {*side_by_side([thread_name] * 12, 3), *side_by_side([thread_name] * 12, 3)}
    assert len(seen) <= 3
    one = {begin(thread_name).result() for _ in range(50)}
    assert len(one) < 25  # what is just done may not have come back yet


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_no_more_calls_are_under_way_than_asked_for(at_once: int) -> None:
    under_way, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.03)
        with lock:
            under_way -= 1

    side_by_side([call] * 12, at_once)
    assert most == at_once


def test_calls_that_wait_for_calls_do_not_wait_for_each_other() -> None:
    def nested(depth: int) -> int:
        if depth == 0:
            return 1
        below = sum(side_by_side([partial(nested, depth - 1)] * 2, 2))
        return below + begin(partial(nested, depth - 1)).result()

    assert begin(partial(nested, 4)).result(timeout=60) == 3**4


def test_first_error_is_raised_when_what_has_begun_has_ended() -> None:
    ended, begun = [], threading.Event()

    def fail() -> None:
        begun.wait(timeout=60)
        raise ValueError("first")

    def last() -> None:
        begun.set()
        time.sleep(0.05)
        ended.append(True)

    with pytest.raises(ValueError, match="first"):
        side_by_side([fail, last], 2)
    assert ended == [True]


def test_calls_after_an_error_are_dropped() -> None:
    called: list[int] = []

    def fail() -> None:
        raise ValueError("now")

    def late(number: int) -> None:
        time.sleep(0.01)
        called.append(number)

    with pytest.raises(ValueError, match="now"):
        side_by_side([fail, *(partial(late, n) for n in range(200))], 2)
    assert len(called) < 100


def test_process_ends_when_its_calls_have_ended() -> None:
    text = (
        "import time; from keytide.base.process import begin; "
        "begin(lambda: (time.sleep(0.3), print('done', flush=True)))"
    )
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
