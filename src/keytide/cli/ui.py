"""The command that shows a lake in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.cli.address import required_warehouse
from keytide.cli.near import cache_arguments
from keytide.cli.output import note
from keytide.cli.parameters import Warehouse
from keytide.extras import require
from keytide.lake.lake import connect

__all__ = ["ui"]

_PORT = 7411


def ui(
    warehouse: Warehouse = None,
    host: Annotated[
        str, typer.Option(help="Where to listen. Without it only this machine reaches the page.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes one that is free.")
    ] = _PORT,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Offer compaction, tags and rollback too, and run SQL that changes tables.",
        ),
    ] = False,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Show a warehouse in a browser: tables, snapshots, files, changes, SQL.

    Writes the address to open, which has a secret token in it, and answers until Ctrl-C. Nothing
    can be changed unless --allow-changes is given.

    Example: keytide ui -w /data/lake --open
    """
    for library in ("starlette", "uvicorn", "jinja2"):
        require(library, "ui", "keytide ui")
    from keytide.ui.server import is_loopback, serve  # these libraries are there now

    lake = connect(required_warehouse(warehouse), **cache_arguments())
    if not is_loopback(host):
        note(
            f"warning: other machines reach this page at {host}; the token and all that is shown "
            f"go over the network as plain text, so put a proxy with TLS before it"
        )
    serve(lake, host, port, allows_changes=allow_changes, opens=open_browser, tell=typer.echo)
