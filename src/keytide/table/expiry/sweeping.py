"""Deleting what named files, and then the files that nothing names any more.

Rules that protect data:

- Whoever finds a snapshot, tag, branch or changelog finds all of its files. So these go first, and
  their files when they are gone.
- Tags and branches are looked at when what expires is gone. Whoever tags a snapshot looks, when the
  tag is there, whether the snapshot still is: one of the two sees the other.
- What is about to be deleted is noted in a file before, so that somebody who dies is followed by
  the next one who comes. That one believes the note nothing: it deletes what nothing names by then.
- What is published is looked at then, too: whoever publishes a snapshot looks, when that is done,
  whether the snapshot still is.
- Where the snapshots are not those that were to be left, because the table was rolled back
  meanwhile, what all of them name stays.

Several may sweep at once; whatever one finds gone, another one has deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keytide.errors import DataError, NotFoundError
from keytide.format import paths
from keytide.format.json_document import INTEGER, TEXTS, member, read_document, write_document
from keytide.format.snapshot import Snapshot
from keytide.table.expiry.references import Naming, changelogs, held_lines, name_of
from keytide.table.publishing.published import names_of_published
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.retries import again, is_gone
from keytide.table.state.view import TableView

__all__ = ["Sweep", "finish_sweeps", "free_files"]


@dataclass(frozen=True)
class Sweep:
    """What is to go: snapshots, or changelogs, from one id to another, and perhaps their files.

    `left` are the snapshots that stay; each of the `files` is deleted unless something else names
    it, or one of these where they are not those that are there.
    """

    metadata: TableMetadata
    view: TableView
    first: int
    last: int
    files: Mapping[str, int]
    left: frozenset[int]

    def run(self, delete_documents: Callable[[], None]) -> list[str]:
        """Delete documents by the function given, then files. Gives the files that went.

        Raises what the function raises, with no file deleted, and `DataError` when the store fails.
        """
        store, note = self.metadata.store, paths.expiring_path(paths.new_uuid())
        # Nobody needs the note unless this process dies, so it need not outlive the machine.
        store.hint(note, _Note(self.first, self.last, tuple(self.files)).to_json())
        delete_documents()
        free = again(lambda: free_files(self.metadata, self.view, self.files, self.left))
        store.delete(free)
        store.delete([note])
        return free


def free_files(
    metadata: TableMetadata,
    view: TableView,
    files: Iterable[str],
    left: Collection[int] | None,
    *,
    told: Sequence[Snapshot] = (),
    gone: Sequence[Snapshot] = (),
) -> list[str]:
    """Those of some files that nothing names, where snapshots that are `left` do not.

    With None, or where there are by now others and not only newer ones, snapshots are asked too.
    `told` are changelogs that are to be, `gone` those that are not to be any more.
    """
    known = list(files)
    naming = Naming(metadata, view, frozenset(map(name_of, known)))
    # Tags and branches first: what is made of one of them is a snapshot of the table by then.
    held = naming.of(held_lines(metadata.store))
    ids = metadata.snapshot_ids()
    if left is None or {number for number in ids if number <= max(left, default=0)} != {*left}:
        held |= naming.of([[metadata.snapshot(number) for number in ids]])
    # Changelogs last: a snapshot that expires becomes one.
    outliving = [each for each in changelogs(metadata.store) if each not in gone]
    held |= naming.of_changelogs([*outliving, *told])
    held |= names_of_published(metadata.store, view)
    return [path for path in known if name_of(path) not in held]


def finish_sweeps(metadata: TableMetadata, view: TableView, names: Iterable[str]) -> None:
    """Finish what others noted who died, or who are at work at this moment.

    `names` are those of the folder of snapshots, some time before.
    """
    for name in names:
        if paths.parse_expiring_name(name) is not None:
            try:
                _finish(metadata, view, paths.join(paths.snapshot_dir(), name))
            except (DataError, NotFoundError) as error:
                if not is_gone(error):
                    raise


def _finish(metadata: TableMetadata, view: TableView, path: str) -> None:
    store = metadata.store
    data = store.read(path)
    try:
        note = _Note.from_json(data, store.uri_of(path))
    except DataError:
        note = _Note(0, 0, ())  # torn, as the machine stopped: it cannot be followed
    store.delete(free_files(metadata, view, note.files, None))
    if not any(note.first <= number <= note.last for number in metadata.snapshot_ids()):
        store.delete([path])


@dataclass(frozen=True)
class _Note:
    """What is about to go: snapshots, and files that perhaps only they name. Persisted."""

    first: int
    last: int
    files: tuple[str, ...]

    @classmethod
    def from_json(cls, data: bytes, path: str) -> _Note:
        """Parse a note. Raises `DataError` when it is torn."""
        document = read_document(data, path)
        first, last = (member(document, name, INTEGER, path) for name in ("first", "last"))
        return cls(first, last, tuple(member(document, "files", TEXTS, path)))

    def to_json(self) -> bytes:
        """The file's bytes."""
        return write_document(
            self, lambda note: {"first": note.first, "last": note.last, "files": note.files},
            _Note.from_json,
        )  # fmt: skip
