"""Search for a Java runtime for Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keytide.errors import SetupError

__all__ = ["JAVA_VERSION_MIN", "JavaRuntime", "find_java"]

JAVA_VERSION_MIN = 17
"""The minimum version for Spark 4."""

_INSTALLED_BELOW = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
# A first start on a busy machine takes several seconds, but a Java process that hangs must not
# block the session.
_ANSWER_SECONDS_MAX = 60


@dataclass(frozen=True)
class JavaRuntime:
    """A Java installation: its home, its feature version (17, 21, ...), and where it was found."""

    home: Path
    version: int
    found_by: str


def find_java(
    environment: Mapping[str, str] | None = None,
    installed_below: Sequence[Path] = _INSTALLED_BELOW,
) -> JavaRuntime:
    """The first usable runtime: from JAVA_HOME, then PATH, then the usual installation folders.

    Runs `java -version` for each until one is new enough. Raises `SetupError`, which names what was
    found and how to fix it.
    """
    variables = os.environ if environment is None else environment
    found: list[str] = []
    for found_by, home in _candidates(variables, installed_below):
        version = _version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return JavaRuntime(home, version, found_by)
        what = "no working bin/java" if version is None else f"Java {version}"
        found.append(f"{found_by} ({home}) has {what}")
    there = "; ".join(found) or "JAVA_HOME is not set and there is no java on the PATH"
    raise SetupError(
        f"Spark requires Java {JAVA_VERSION_MIN} or newer, but {there}. Install it, for example "
        "with 'apt-get install openjdk-17-jre-headless', 'brew install openjdk@17' or from "
        "https://adoptium.net, and set JAVA_HOME to its folder"
    )


def _candidates(
    variables: Mapping[str, str], installed_below: Sequence[Path]
) -> Iterator[tuple[str, Path]]:
    if variables.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(variables["JAVA_HOME"])
    on_path = shutil.which("java", path=variables.get("PATH", ""))
    if on_path is not None:
        yield "the PATH", Path(on_path).resolve().parents[1]
    for folder in installed_below:
        for home in sorted(folder.glob("*")):
            bundled = home / "Contents" / "Home"  # macOS
            yield str(folder), bundled if bundled.is_dir() else home


def _version(java: Path) -> int | None:
    """The feature version that `java -version` reports, None if it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None
