"""Which sorted runs of a bucket are compacted, and to which level: values only.

This is universal compaction, as in the other engines of the format. Runs are picked from the newest
on without a gap, so the output never passes an older run. Nothing is written to level 0. When all
runs are picked, the output goes to the highest level. A run of level 0 that is larger than all
newer ones, such as the result of a load, becomes a separate unit: it moves to its level without a
rewrite, and the newer runs are compacted below it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from keytide.base.dataclass import dataclass
from keytide.format.manifest_entry import ManifestEntry
from keytide.options import TableOptions
from keytide.snapshot.live_files import BucketId

# -- selection of sorted runs ----------------------------------------------------------------------


# For buckets that are only compacted as a whole: the minimum size of newer data in percent of the
# oldest run, or the number of runs as a multiple of the usual trigger.
_WORTH_PERCENT = 10
_MANY = 10
# Smaller runs are rewritten quickly, and one run is faster to read than two.
_MOVED_BYTES_MIN = 4 << 20
_CHEAP_BYTES = 512 << 10


@dataclass(frozen=True)
class SortedRun:
    """Files of one bucket without a common key: one run of level 0, or a whole higher level."""

    level: int
    files: tuple[ManifestEntry, ...]

    @property
    def size(self) -> int:
        """The size of its files in bytes."""
        return sum(entry.file.file_size for entry in self.files)


@dataclass(frozen=True)
class Unit:
    """Runs to compact, newest first, and the level of the output.

    `is_whole` says that these are all runs of the bucket, so that nothing older is below. `moves`
    says that the files must not be rewritten, however small they are.
    """

    runs: tuple[SortedRun, ...]
    output_level: int
    is_whole: bool
    moves: bool = False

    @property
    def files(self) -> tuple[ManifestEntry, ...]:
        """The files of the runs."""
        return tuple(itertools.chain.from_iterable(run.files for run in self.runs))

    @property
    def bucket(self) -> BucketId:
        """The bucket of the runs."""
        first = self.runs[0].files[0]
        return first.partition, first.bucket

    @property
    def is_idle(self) -> bool:
        """Whether the compaction would change nothing: there is one run, on the right level."""
        return len(self.runs) == 1 and self.runs[0].level == self.output_level


@dataclass(frozen=True)
class Rules:
    """When a bucket is compacted, according to the options of its table."""

    trigger_runs: int = 5
    num_levels: int = 6
    size_amplification_percent: int = 200
    size_ratio_percent: int = 1
    optimization_interval_ms: int | None = None
    total_size_threshold: int | None = None
    incremental_size_threshold: int | None = None
    cheap_bytes: int = 0
    """A compaction of this size takes hardly longer than one of two tiny runs."""
    only_whole: bool = False
    """Whether a merged version always needs all older versions of its key."""
    moved_bytes_min: int | None = None
    """The minimum size of a run of level 0 that moves to its level without a rewrite, if it is
    larger than all newer ones. None: all of level 0 is compacted together.
    """

    @classmethod
    def of(cls, options: TableOptions, *, only_whole: bool, moves: bool) -> Rules:
        """The rules of a table."""
        return cls(
            options.compaction_trigger_runs,
            options.num_levels,
            options.size_amplification_percent,
            options.size_ratio_percent,
            options.optimization_interval_ms,
            options.total_size_threshold_bytes,
            options.incremental_size_threshold_bytes,
            min(_CHEAP_BYTES, options.background_compaction_bytes_min),
            only_whole,
            _MOVED_BYTES_MIN if moves else None,
        )

    @property
    def has_early_rules(self) -> bool:
        """Whether a bucket may be due although it has few runs."""
        thresholds = (
            self.optimization_interval_ms, self.total_size_threshold,
            self.incremental_size_threshold,
        )  # fmt: skip
        return any(threshold is not None for threshold in thresholds)


def sorted_runs(files: Iterable[ManifestEntry]) -> list[SortedRun]:
    """The runs of one bucket, newest first."""
    by_level: dict[int, list[ManifestEntry]] = {}
    for entry in files:
        by_level.setdefault(entry.file.level, []).append(entry)
    level_0 = sorted(
        by_level.pop(0, []),
        key=lambda e: (e.file.max_sequence_number, e.file.min_sequence_number),
        reverse=True,
    )
    upper = [SortedRun(level, tuple(by_level[level])) for level in sorted(by_level)]
    return [*(SortedRun(0, (entry,)) for entry in level_0), *upper]


def pick(runs: Sequence[SortedRun], rules: Rules, now_ms: int) -> list[Unit]:
    """What to compact in a bucket after a write, newest first. Empty if it can wait.

    `now_ms` is a wall-clock time, as in the creation times of files.
    """
    whole, surplus = _by_early_rules(runs, rules, now_ms), len(runs) - rules.trigger_runs
    if whole is None and not rules.only_whole:
        whole = _by_size_amplification(runs, rules)
    elif whole is None and surplus >= 0:
        # There is enough newer data to rewrite the oldest run, or there are very many runs.
        newer = sum(run.size for run in runs[:-1])
        is_worth = newer * 100 >= _WORTH_PERCENT * runs[-1].size
        whole = _all(runs, rules) if is_worth or len(runs) >= _MANY * rules.trigger_runs else None
    if whole is not None or rules.only_whole:
        units = [] if whole is None else [whole]
    else:
        newest = _of_alike(runs, rules, 1) if surplus >= 0 else None
        if newest is None and surplus > 0:
            # As many runs as exceed the limit, whatever their sizes.
            newest = _of_alike(runs, rules, surplus + 1)
        units = [] if newest is None else _split_large_runs(newest, rules)
    return [unit for unit in units if not unit.is_idle]


def _split_large_runs(unit: Unit, rules: Rules) -> list[Unit]:
    """A unit without the runs of level 0 that are larger than all newer ones, and separate units
    for these.

    They get the levels from the unit's level downwards, as long as one is left for the others.
    """
    runs, level, moved = unit.runs, unit.output_level, list[Unit]()
    while level > 1 and runs[-1].level == 0:
        # The files of the oldest sorted run. A large run is stored as several files, and all of its
        # rows have the number of their write.
        numbers, count = _numbers_of(runs[-1]), 1
        if numbers[0] == numbers[1]:
            while count < len(runs) and _numbers_of(runs[-count - 1]) == numbers:
                count += 1
        newer, oldest = runs[:-count], runs[-count:]
        size = sum(run.size for run in oldest)
        least = rules.moved_bytes_min
        if least is None or not newer or size < max(least, sum(run.size for run in newer) + 1):
            break
        moved.append(Unit(oldest, level, is_whole=False, moves=True))
        runs, level = newer, level - 1
    if not moved:
        return [unit]
    return [Unit(runs, level, is_whole=False), *reversed(moved)]


def _numbers_of(run: SortedRun) -> tuple[int, int]:
    (entry,) = run.files
    return entry.file.min_sequence_number, entry.file.max_sequence_number


def pick_all(runs: Sequence[SortedRun], rules: Rules, *, again: bool = False) -> Unit | None:
    """All runs, for the highest level. None if there are none.

    Also None if they already are one run there, unless `again` is set.
    """
    unit = _all(runs, rules) if runs else None
    return None if unit is None or (unit.is_idle and not again) else unit


def pick_apart(runs: Sequence[SortedRun], rules: Rules, now_ms: int) -> Unit | None:
    """All runs of a bucket whose versions stay separate, if enough is new. None if it can wait.

    The last compaction may have left any number of runs, so only those of level 0 count.
    """
    new = [run for run in runs if run.level == 0]
    if not new:
        return None
    size, size_new = sum(run.size for run in runs), sum(run.size for run in new)
    old = (entry.file for run in runs if run.level > 0 for entry in run.files)
    made = max((file.creation_time or 0 for file in old), default=0)
    interval, total = rules.optimization_interval_ms, rules.total_size_threshold
    threshold = rules.incremental_size_threshold
    is_due = (
        (interval is not None and now_ms - made > interval)
        or (total is not None and size < total)
        or (threshold is not None and size_new > threshold)
        or len(new) >= _MANY * rules.trigger_runs
        or (len(new) >= rules.trigger_runs and size_new * 100 >= _WORTH_PERCENT * (size - size_new))
    )
    return pick_all_apart(runs, rules) if is_due else None


def pick_all_apart(runs: Sequence[SortedRun], rules: Rules, *, again: bool = False) -> Unit | None:
    """All runs of such a bucket. None if nothing is new, unless `again` is set."""
    if not again and all(run.level > 0 for run in runs):
        return None
    # Separate versions are above this level, which contains the rows that are read without a merge.
    return Unit(tuple(runs), rules.num_levels - 1, is_whole=True)


def pick_new(runs: Sequence[SortedRun], rules: Rules) -> Unit | None:
    """All of level 0, for a higher level, whatever else exists. None if level 0 is empty."""
    count = sum(run.level == 0 for run in runs)
    return _newest(runs, rules, count) if count else None


def _by_early_rules(runs: Sequence[SortedRun], rules: Rules, now_ms: int) -> Unit | None:
    """The whole bucket, if it is small, has much data below its highest level, or waited for
    long.
    """
    if len(runs) < 2:
        return None
    # Files of other engines may be above the configured levels.
    highest = max(rules.num_levels - 1, *(run.level for run in runs))
    below = sum(run.size for run in runs if run.level != highest)
    total, incremental = rules.total_size_threshold, rules.incremental_size_threshold
    interval_ms, oldest = rules.optimization_interval_ms, runs[-1]
    # The last full compaction was long ago, or never.
    is_late = interval_ms is not None and (
        oldest.level != highest
        or now_ms - max(entry.file.creation_time or 0 for entry in oldest.files) > interval_ms
    )
    is_due = (
        is_late
        or (total is not None and sum(run.size for run in runs) < total)
        or (incremental is not None and below > incremental)
    )
    return _all(runs, rules) if is_due else None


def _by_size_amplification(runs: Sequence[SortedRun], rules: Rules) -> Unit | None:
    """All runs, if the newer ones are large compared with the oldest."""
    if len(runs) < rules.trigger_runs:
        return None
    newer = sum(run.size for run in runs[:-1])
    is_large = newer * 100 > rules.size_amplification_percent * runs[-1].size
    return _all(runs, rules) if is_large else None


def _of_alike(runs: Sequence[SortedRun], rules: Rules, count: int) -> Unit | None:
    """The `count` newest runs, and the next ones that are hardly larger than all before them.

    Also the next ones that are cheap to rewrite, without the oldest of all: otherwise, once each
    level has a run, every small write would make a compaction due.
    """
    size = sum(run.size for run in runs[:count])
    for run in runs[count:]:
        is_alike = size * (100 + rules.size_ratio_percent) >= run.size * 100
        is_cheap = run is not runs[-1] and size + run.size <= rules.cheap_bytes
        if not is_alike and not is_cheap:
            break
        size += run.size
        count += 1
    return _newest(runs, rules, count) if count > 1 else None


def _newest(runs: Sequence[SortedRun], rules: Rules, count: int) -> Unit:
    """The `count` newest runs and all of level 0, to the level below that of the next run.

    If that would be level 0, the run on level 1 is included.
    """
    count = max(count, sum(run.level == 0 for run in runs))
    if count < len(runs) and runs[count].level == 1:
        count += 1
    if count == len(runs):
        return _all(runs, rules)
    return Unit(tuple(runs[:count]), max(1, runs[count].level - 1), is_whole=False)


def _all(runs: Sequence[SortedRun], rules: Rules) -> Unit:
    # Files of other engines may be above the configured levels.
    return Unit(tuple(runs), max(rules.num_levels - 1, *(run.level for run in runs)), is_whole=True)
