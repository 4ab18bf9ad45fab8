"""Which manifests of a snapshot are written anew as fewer ones: values only.

Merging changes no entry's meaning, only where it stands, so a snapshot means the same with other
bounds. What a commit itself changed is never merged with what was there before: readers of changes
look for it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keytide.format.manifest import ManifestFileMeta
from keytide.options import TableOptions

__all__ = ["MergeRules", "Rewrite", "pick", "pick_all", "runs_of"]


@dataclass(frozen=True)
class MergeRules:
    """When manifests are merged, as the options of a table say.

    `count_min` of them are merged however small they are, those that reach `target_bytes` together
    however few. Once all that are small or delete files reach `full_bytes`, none of them is left.
    """

    count_min: int = 30
    target_bytes: int = 8 << 20
    full_bytes: int = 16 << 20

    @classmethod
    def of(cls, options: TableOptions) -> MergeRules:
        """The rules of a table."""
        return cls(
            options.manifest_merge_min_count,
            options.manifest_target_bytes,
            options.manifest_full_merge_bytes,
        )


@dataclass(frozen=True)
class Rewrite:
    """The places of the manifests to write anew, ascending.

    A full one leaves no deletion behind: of a file that is deleted, no manifest knows any more.
    """

    places: tuple[int, ...] = ()
    is_full: bool = False


def pick(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> Rewrite:
    """What to write anew of a snapshot's manifests, oldest first; no places where that can wait."""
    everything = pick_all(manifests, rules)
    size = sum(manifests[place].file_size for place in everything.places)
    if everything.places and size >= rules.full_bytes:
        return everything
    return Rewrite(tuple(_minor(manifests, rules)))


def pick_all(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> Rewrite:
    """All manifests that are small or delete files; none where nothing would come of it."""
    places = tuple(
        place
        for place, manifest in enumerate(manifests)
        if manifest.num_deleted_files or _is_small(manifest, rules)
    )
    has_gain = any(stop - start > 1 for start, stop in runs_of(places)) or any(
        manifests[place].num_deleted_files for place in places
    )
    return Rewrite(places, is_full=True) if has_gain else Rewrite()


def runs_of(places: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring places as ranges, from the first to behind the last."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def _minor(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> list[int]:
    """Neighbours that reach the target size together, and the newest ones where they are many."""
    found: list[int] = []
    group: list[int] = []
    for place, manifest in enumerate(manifests):
        if not _is_small(manifest, rules):
            group = []  # files stay in the order of their commits
            continue
        group.append(place)
        if len(group) > 1 and sum(manifests[p].file_size for p in group) >= rules.target_bytes:
            found += group
            group = []
    return found + _many(manifests, group, rules.count_min)


def _many(manifests: Sequence[ManifestFileMeta], group: Sequence[int], count_min: int) -> list[int]:
    """The newest manifests of a group, once there are `count_min` of one size class.

    Classes grow by the factor `count_min`: a merge gathers the newest manifests that are smaller
    than their class's limit, and may make the next class full in turn. So an entry is rewritten
    only logarithmically often, and the list of manifests stays short.
    """
    sizes = [manifests[p].num_added_files + manifests[p].num_deleted_files for p in group]
    start, limit = len(group), count_min
    while start > 0:
        newer = start
        while start > 0 and sizes[start - 1] < limit:
            start -= 1
        if newer - start >= count_min:
            return list(group[start:])
        limit *= count_min
    return []


def _is_small(manifest: ManifestFileMeta, rules: MergeRules) -> bool:
    return manifest.file_size < rules.target_bytes
