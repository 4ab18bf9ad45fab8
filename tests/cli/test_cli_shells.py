"""Completion in bash, as the reference of the command line describes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def bash(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell in which the command is installed, in an empty home."""
    command = tmp_path / "bin/keytide"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m keytide_command "$@"\n')
    command.chmod(0o755)
    source = str(Path(__file__).parents[2] / "src")
    path = f"{command.parent}:{os.environ['PATH']}"
    return {**os.environ, "HOME": str(tmp_path), "PATH": path, "PYTHONPATH": source}


@pytest.mark.takes_turns
def test_bash_completes_commands_and_options(bash: dict[str, str]) -> None:
    script = """
        keytide --install-completion >&2
        source ~/.bashrc
        completed() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _keytide_completion keytide
                      echo "${COMPREPLY[*]}"; }
        complete -p keytide
        completed keytide snap
        completed keytide scan --li
        installed=$(cat ~/.bash_completions/keytide.sh)
        [ "$(keytide --show-completion)" = "$installed" ] && echo the same
    """
    done = subprocess.run(
        ["bash", "-c", script], env=bash, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "complete -o default -F _keytide_completion keytide",
        "snapshots",
        "--limit",
        "the same",
    ], done.stderr
