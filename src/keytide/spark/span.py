"""Options that select snapshots: the one to read, or the range of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from keytide.base.moments import epoch_ms
from keytide.changes.follow import Start, start_of
from keytide.errors import InvalidError, UnsupportedError
from keytide.options import keys
from keytide.snapshot.stored import StoredTable
from keytide.spark.option_names import Given, GivenOptions
from keytide.spark.option_table import BETWEEN_TIMES, SCAN_MODE

__all__ = ["NAME_A_SNAPSHOT", "end_of_changes", "mode_of", "snapshot_named", "start_of_changes"]

Place: TypeAlias = "int | str"

_TIMES = ("as-of", keys.SCAN_TIMESTAMP_MILLIS, keys.SCAN_TIMESTAMP)
NAME_A_SNAPSHOT = ("snapshot-id", "tag", keys.SCAN_SNAPSHOT_ID, keys.SCAN_VERSION, *_TIMES)
"""The options that select the snapshot of a scan."""


def snapshot_named(options: GivenOptions, table: StoredTable) -> dict[str, Any]:
    """The snapshot of a scan as an argument of `scan_table`, empty for the latest.

    Raises `InvalidError` and `UnsupportedError` for a `scan.mode` that does not fit.
    """
    _check_scan_mode(options, table.name)
    given = _one_of(options, *NAME_A_SNAPSHOT)
    if given is None:
        return {}
    if given.option.key in _TIMES:
        return {"as_of": epoch_ms(given.value, table.name, given.name)}
    if given.option.key == keys.SCAN_VERSION:
        # Other engines can create tags that consist of digits. As in these engines, a tag takes
        # precedence over an id.
        is_id = isinstance(given.value, int) and not table.metadata.has_tag(str(given.value))
        return {"snapshot_id": given.value} if is_id else {"tag": str(given.value)}
    return {"tag" if given.option.key == "tag" else "snapshot_id": given.value}


def start_of_changes(options: GivenOptions, table: StoredTable) -> Start | None:
    """Where changes begin according to the options, None if they do not say.

    Raises `NotFoundError` when that place does not exist, `InvalidError` for an invalid place, and
    as `snapshot_named`.
    """
    mode = _check_scan_mode(options, table.name)
    if mode in _BEGIN_STREAMS:
        return start_of(table, _BEGIN_STREAMS[mode])
    if mode == "from-snapshot-full":
        raise UnsupportedError(
            f"table {table.name}: '{SCAN_MODE}' = {mode!r} is not supported in a stream, which "
            "cannot start with the rows of an older snapshot; start with those of the latest one "
            "('latest-full'), or with the changes of a snapshot ('from-snapshot')"
        )
    for key, begin in _BEGIN.items():
        if key in options:
            return begin(table, options.by_key[key])
    return None


def end_of_changes(options: GivenOptions, table: StoredTable) -> Place | None:
    """The snapshot or tag at which changes end, None if options do not say. Raises likewise."""
    for key, end in _ENDS.items():
        if key in options:
            return end(table, options.by_key[key])
    return None


def mode_of(options: GivenOptions, table: StoredTable) -> str:
    """The mode of the changes, as in `Table.changes`."""
    mode: str = options.value("mode") or "diff"
    if mode != "auto":
        return mode
    producer = table.view(table.schema).options.changelog_producer
    return "delta" if producer == "none" else "changelog"


# -- start of changes ------------------------------------------------------------------------------


def _with_snapshot(table: StoredTable, given: Given) -> Start:
    """The changes include the snapshot itself."""
    if given.value == "latest":
        return start_of(table, "latest")
    return start_of(table, max(given.value - 1, 0))


def _since(table: StoredTable, given: Given) -> Start:
    """The changes include what was committed at that very moment."""
    return start_of(table, None, epoch_ms(given.value, table.name, given.name) - 1)


def _after(table: StoredTable, given: Given) -> Start:
    return start_of(table, None, epoch_ms(given.value, table.name, given.name))


def _start(table: StoredTable, given: Given) -> Start:
    is_tag = isinstance(given.value, str) and given.value not in ("full", "latest")
    if is_tag and table.metadata.has_tag(given.value):
        return Start.at(table.metadata.tag(given.value))
    return start_of(table, given.value)


def _between(table: StoredTable, given: Given) -> Start:
    start = _place(_both(given, table.name)[0])
    return Start(start) if isinstance(start, int) else Start.at(table.metadata.tag(start))


def _between_times(table: StoredTable, given: Given) -> Start:
    moment = epoch_ms(_place(_both(given, table.name)[0]), table.name, given.name)
    return start_of(table, None, moment)


_BEGIN: Mapping[str, Callable[[StoredTable, Given], Start]] = {
    "startingVersion": _with_snapshot,
    keys.SCAN_SNAPSHOT_ID: _with_snapshot,
    "startingTimestamp": _since,
    keys.SCAN_TIMESTAMP_MILLIS: _since,
    keys.SCAN_TIMESTAMP: _since,
    "as-of": _after,
    "start": _start,
    keys.INCREMENTAL_BETWEEN: _between,
    BETWEEN_TIMES: _between_times,
}


# -- end of changes --------------------------------------------------------------------------------


def _end(table: StoredTable, given: Given) -> Place:
    place: Place = given.value
    return place


def _end_at(table: StoredTable, given: Given) -> Place:
    return _newest_at(table, given.value, given.name)


def _end_between(table: StoredTable, given: Given) -> Place:
    return _place(_both(given, table.name)[1])


def _end_between_times(table: StoredTable, given: Given) -> Place:
    return _newest_at(table, _place(_both(given, table.name)[1]), given.name)


_ENDS: Mapping[str, Callable[[StoredTable, Given], Place]] = {
    "end": _end,
    "endingTimestamp": _end_at,
    keys.INCREMENTAL_BETWEEN: _end_between,
    BETWEEN_TIMES: _end_between_times,
}


# -- parsing of values and modes -------------------------------------------------------------------


def _both(given: Given, table: str) -> tuple[str, str]:
    places = [text.strip() for text in given.value.split(",")]
    if len(places) != 2 or not all(places):
        raise InvalidError(
            f"table {table}: {given.name!r} is {given.value!r}; expected two values separated by "
            "a comma, such as '1,3'"
        )
    return places[0], places[1]


def _place(text: str) -> Place:
    return int(text) if text.isdecimal() else text


def _newest_at(table: StoredTable, moment: Place, name: str) -> int:
    return table.metadata.snapshot_as_of(epoch_ms(moment, table.name, name)).id


def _one_of(options: GivenOptions, *known: str) -> Given | None:
    return next((options.by_key[key] for key in known if key in options), None)


_BEGIN_STREAMS = {"latest-full": "full", "full": "full", "latest": "latest"}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "from-snapshot": (keys.SCAN_SNAPSHOT_ID, keys.SCAN_VERSION, "tag", "snapshot-id"),
    "from-snapshot-full": (keys.SCAN_SNAPSHOT_ID, keys.SCAN_VERSION, "tag", "snapshot-id"),
    "from-timestamp": (keys.SCAN_TIMESTAMP_MILLIS, keys.SCAN_TIMESTAMP, "as-of"),
    "incremental": (keys.INCREMENTAL_BETWEEN, BETWEEN_TIMES),
}


def _check_scan_mode(options: GivenOptions, table: str) -> str:
    """The scan mode, if it agrees with the other options."""
    mode: str = options.value(SCAN_MODE) or "default"
    if mode in ("default", "latest-full", "full", "latest"):
        places = dict.fromkeys((*_BEGIN, *NAME_A_SNAPSHOT))
        others = [options.by_key[key].name for key in places if key in options]
        if mode != "default" and others:
            raise InvalidError(
                f"table {table}: '{SCAN_MODE}' is {mode!r}, but {', '.join(map(repr, others))} "
                "selects another start; give only one of them"
            )
    elif mode not in _NEEDED:
        raise UnsupportedError(
            f"table {table}: '{SCAN_MODE}' = {mode!r} is not supported; expected one of "
            f"{', '.join(map(repr, (*_BEGIN_STREAMS, *_NEEDED)))}"
        )
    elif not any(key in options for key in _NEEDED[mode]):
        raise InvalidError(f"table {table}: '{SCAN_MODE}' = {mode!r} requires {_NEEDED[mode][0]!r}")
    return mode
