"""The command that shows a lake in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.base.extras import require
from keytide.cli.address import required_warehouse
from keytide.cli.near import cache_arguments
from keytide.cli.output import note
from keytide.cli.parameters import Warehouse
from keytide.lake.opening import connect

__all__ = ["ui"]

_PORT = 7411


def ui(
    warehouse: Warehouse = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. By default, only this machine can open the page."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")
    ] = _PORT,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Also allow compaction, tags, rollback and SQL statements that change tables.",
        ),
    ] = False,
    query_timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long a query can run; 0 for no time limit."
        ),
    ] = 60,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Show a warehouse in the browser.

    The page shows tables, snapshots, files, changes and SQL. Prints the address of the page, which
    contains a secret token, and runs until Ctrl-C. The page is read-only unless you set
    --allow-changes.

    Example: keytide ui -w /data/lake --open
    """
    for library in ("starlette", "uvicorn", "jinja2"):
        require(library, "ui", "keytide ui")
    from keytide.ui.server import is_loopback, serve  # these libraries were checked above

    lake = connect(required_warehouse(warehouse), **cache_arguments())
    if not is_loopback(host):
        note(
            f"warning: the page is reachable from other machines at {host}. The token and all "
            "data are sent unencrypted; use a proxy with TLS"
        )
    serve(
        lake, host, port, allows_changes=allow_changes, opens=open_browser,
        query_seconds_max=query_timeout or None, tell=typer.echo,
    )  # fmt: skip
