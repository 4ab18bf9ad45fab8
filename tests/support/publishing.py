"""Changes that no public call makes, published as any other."""

from __future__ import annotations

import keytide as kt
from keytide.commit.change import Change
from keytide.commit.committer import Committed, Committer
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import TableView
from keytide.write.bucket_writer import restamp


def publish(table: kt.Table, view: TableView, change: Change, known: LiveFiles) -> None:
    """Make a change the next snapshot of a table."""
    assert isinstance(Committer(table.metadata, view, restamp).publish(change, known), Committed)
