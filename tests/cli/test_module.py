"""`python -m keytide` is the command `keytide`."""

from __future__ import annotations

import runpy
import sys

import pytest

import keytide


def test_module_runs_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["keytide", "--version"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("keytide", run_name="__main__")
    assert not left.value.code
    assert capsys.readouterr().out == f"keytide {keytide.__version__}\n"
