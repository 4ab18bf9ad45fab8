"""Tables that the command line looks into, and a way to call it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import keytide as kt
from keytide.cli.main import app


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.delenv("KEYTIDE_WAREHOUSE", raising=False)

    def call(*arguments: str) -> Ran:
        done = CliRunner().invoke(app, list(arguments))
        return Ran(done.exit_code, done.stdout, done.stderr)

    return call


@pytest.fixture
def orders(orders_once: Path, warehouse: str) -> kt.Table:
    """Three orders after two commits: 1 updated, 4 deleted."""
    shutil.copytree(orders_once, warehouse, dirs_exist_ok=True)
    return kt.connect(warehouse).table("shop.orders")


@pytest.fixture(scope="session")
def orders_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warehouse = tmp_path_factory.mktemp("orders")
    table = kt.connect(str(warehouse)).create_table(
        "shop.orders",
        pa.schema([("id", pa.int64()), ("status", pa.string()), ("amount", pa.decimal128(9, 2))]),
        primary_key=["id"],
        options={"bucket": "2"},
    )
    table.write([order(1, "new", "10.00"), order(2, "", "20.50"), order(4, "new", "1.00")])
    table.write(
        [
            {**order(1, "paid", "10.00"), "_row_kind": "+U"},
            {**order(3, None, None), "_row_kind": "+I"},
            {**order(4, "new", "1.00"), "_row_kind": "-D"},
        ]
    )
    return warehouse


def order(id: int, status: str | None, amount: str | None) -> dict[str, Any]:
    return {"id": id, "status": status, "amount": None if amount is None else Decimal(amount)}
