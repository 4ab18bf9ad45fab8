"""The epochs of a feed, from the first messages of the feed.

A log is recognized by its name and, where its numbering starts again, by its server. Logs follow
each other as their messages do, which the times of the messages must confirm. Nothing else tells
their order, so anything else is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import polars as pl

from keytide.errors import InvalidError
from keytide.feeds.epochs import ANY_LOG, LOG, NUMBER, POSITION, SERVER, TIME, Epoch

__all__ = ["sampled_epochs"]

_AT, _ARRIVED = "at", "arrived"


def sampled_epochs(events: pl.DataFrame) -> tuple[Epoch, ...]:
    """The epochs of some events in order of arrival, with the columns of `PLACE_PATHS`.

    Raises `InvalidError` if the order of the logs is unknown.
    """
    placed = events.filter(pl.any_horizontal(pl.col(LOG, NUMBER).is_not_null()))
    if placed.is_empty():
        return (Epoch(),)
    unread = placed.filter(pl.col(NUMBER).is_null())
    if unread.height:
        raise InvalidError(
            f"order: found the log file {unread[LOG][0]!r}, expected a name with a number such as "
            "mysql-bin.000001; give the fields that order the changes"
        )
    # A position in a file has four bytes.
    at = pl.col(NUMBER).cast(pl.Int128) * (1 << 32) + pl.col(POSITION).fill_null(0)
    placed = placed.with_columns(at.alias(_AT), pl.col(LOG).fill_null(ANY_LOG))
    placed = placed.with_row_index(_ARRIVED)
    logs = placed.partition_by(LOG, maintain_order=True)
    runs = _in_order([run for log in logs for run in _runs(log)])
    return tuple(_epoch(run, runs[:place]) for place, run in enumerate(runs))


def _epoch(run: pl.DataFrame, earlier: Sequence[pl.DataFrame]) -> Epoch:
    """The epoch of a run. Its time only places changes without a server in logs of one name."""
    log = run[LOG][0]
    same = [each for each in earlier if each[LOG][0] == log]
    is_told = bool(same) and all(_is_later(each, run, strictly=True) for each in same)
    return Epoch(log, _servers(run), run[TIME].min() if is_told else None)  # type: ignore[arg-type]


def _runs(log: pl.DataFrame) -> list[pl.DataFrame]:
    """The events of one log, divided where its numbering starts again."""
    times = log[TIME]
    until, since = times.cum_max().forward_fill().shift(1), times.cum_min(reverse=True)
    is_later = (until <= since.backward_fill()).fill_null(value=True)
    places = ((log[_AT] < log[_AT].cum_max()) & is_later).arg_true()
    for place in places:
        before, after = log[:place], log[place:]
        is_told = bool(_servers(before)) or _is_later(before, after, strictly=True)
        if is_told and _servers(after) and not _servers(before) & _servers(after):
            return [before, *_runs(after)]
        if _is_later(before, after, strictly=True):
            if place != places[0]:
                raise _unclear(log, places[0], place)
            name, again = log[LOG][0], Epoch(log[LOG][0], since=after[TIME].min())  # type: ignore[arg-type]
            raise InvalidError(
                f"order: the numbers of log {name} go back from {before[NUMBER].max()!r} to "
                f"{after[NUMBER][0]} although its messages are later. If the log started again, "
                f"give the epochs: {name!r}, {again.text!r}"
            )
    return [log]


def _unclear(log: pl.DataFrame, first: int, last: int) -> InvalidError:
    """The numbering started again at one of two events, and the times do not tell at which."""
    return InvalidError(
        f"order: the numbers of log {log[LOG][0]} go back to {log[NUMBER][first]} and "
        f"{log[NUMBER][last]}, and the times of the messages do not tell where the log started "
        "again; give the fields that order the changes"
    )


def _in_order(runs: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """The runs in the order of their logs."""
    by_arrival = sorted(runs, key=lambda run: run[_ARRIVED].min())  # type: ignore[arg-type,return-value]
    pairs = list(pairwise(by_arrival))
    is_apart = all(one[_ARRIVED].max() < other[_ARRIVED].min() for one, other in pairs)  # type: ignore[operator]
    if is_apart and all(_is_later(*pair) for pair in pairs):
        return by_arrival
    if not is_apart and all(run[TIME].null_count() < run.height for run in runs):
        by_time = sorted(runs, key=lambda run: run[TIME].min())  # type: ignore[arg-type,return-value]
        steps = pairwise(by_time)
        if all(_is_later(*pair, strictly=True) for pair in steps):
            return by_time
    names = [Epoch(run[LOG][0], _servers(run)).text for run in by_arrival]
    raise InvalidError(
        f"order: the messages come from {len(runs)} logs ({', '.join(names)}), and neither their "
        "order nor their times tell which log is older; give the epochs in their order"
    )


def _is_later(before: pl.DataFrame, after: pl.DataFrame, *, strictly: bool = False) -> bool:
    """Whether the times of one part follow those of another one. Missing times tell nothing."""
    last, first = before[TIME].max(), after[TIME].min()
    if last is None or first is None:
        return not strictly
    return bool(last < first if strictly else last <= first)  # type: ignore[operator]


def _servers(run: pl.DataFrame) -> frozenset[str]:
    found: Sequence[str] = run[SERVER].drop_nulls().unique().to_list()
    return frozenset(found)
