"""Changes that no public call makes, published as any other."""

from __future__ import annotations

import keytide as kt
from keytide.table.commit.change import Change
from keytide.table.commit.publish import Committed, Committer
from keytide.table.state.live_files import LiveFiles
from keytide.table.state.view import TableView
from keytide.table.write.bucket_writer import restamp


def publish(table: kt.Table, view: TableView, change: Change, known: LiveFiles) -> None:
    """Make a change the next snapshot of a table."""
    assert isinstance(Committer(table.metadata, view, restamp).publish(change, known), Committed)
