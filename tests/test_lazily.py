"""Properties that are computed once, and not one after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from keytide.base.process import cached_property


class Reads:
    """Something that takes a while, as a read of a file does."""

    def __init__(self, both: Barrier) -> None:
        self.both = both
        self.times = 0

    @cached_property
    def value(self) -> int:
        """What is read."""
        self.both.wait(timeout=10)
        self.times += 1
        return 7


def test_value_is_computed_once() -> None:
    one = Reads(Barrier(1))
    assert (one.value, one.value, one.times) == (7, 7, 1)


def test_instances_do_not_wait_for_each_other() -> None:
    both = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda read: read.value, [Reads(both), Reads(both)])
        assert [*found] == [7, 7]
