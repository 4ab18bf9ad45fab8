"""What the package says of itself is complete, and agrees with the changelog and the documents."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import tomllib
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import keytide as kt

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
HEADINGS = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
RELEASES = [heading for heading in HEADINGS if heading != "[Unreleased]"]


def test_package_and_project_have_the_same_version() -> None:
    assert kt.__version__ == PROJECT["version"] == str(Version(kt.__version__))


def test_changes_come_first_that_are_in_no_release() -> None:
    assert HEADINGS[0] == "[Unreleased]"


def test_releases_have_a_version_and_a_day_and_the_newest_comes_first() -> None:
    found = [re.fullmatch(r"\[(\d\S*)\] - \d{4}-\d\d-\d\d", heading) for heading in RELEASES]
    assert None not in found, RELEASES
    versions = [Version(each[1]) for each in found if each]
    assert versions == sorted(versions, reverse=True)


def test_version_is_the_newest_release_or_the_next_one() -> None:
    """A version without a heading is one that is not released yet."""
    newest = Version(RELEASES[0].partition("]")[0][1:]) if RELEASES else Version("0")
    assert Version(kt.__version__) >= newest


def test_kinds_of_changes_are_those_of_keep_a_changelog() -> None:
    for part in CHANGELOG.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert {*kinds} <= {*KINDS}, part[:40]
        assert len(kinds) == len({*kinds}), part[:40]


def test_links_of_the_changelog_lead_to_something() -> None:
    named = {*re.findall(r"\]\[([^\]]+)\]", CHANGELOG)}
    told = {*re.findall(r"^\[([^\]]+)\]: \S+$", CHANGELOG, re.MULTILINE)}
    assert named <= told
    files = re.findall(r"\]\(((?!https?:)[^)#]+)", CHANGELOG)
    assert [path for path in files if not (ROOT / path).exists()] == []


def test_classifiers_agree_with_what_is_required() -> None:
    known = [each.rpartition(" :: ")[2] for each in PROJECT["classifiers"]]
    minors = [each for each in known if re.fullmatch(r"3\.\d+", each)]
    wanted = SpecifierSet(PROJECT["requires-python"])
    assert all(minor in wanted for minor in minors)
    assert f"3.{Version(minors[0]).minor - 1}" not in wanted
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in minors
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (ROOT / "src/keytide/py.typed").exists()


def test_extras_that_developers_install_are_all_there_are() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    [own] = [each for each in groups["dev"] if each.startswith("keytide[")]
    extras = {*own.removeprefix("keytide[").removesuffix("]").split(",")}
    assert {*PROJECT["optional-dependencies"]} - {"pandas"} == extras  # Spark brings pandas


def test_readme_and_licence_are_files_of_the_project() -> None:
    assert (ROOT / PROJECT["readme"]).exists()
    assert [(ROOT / each).exists() for each in PROJECT["license-files"]] == [True]
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_every_example_is_listed() -> None:
    listed = re.findall(
        r"^\| `(\w+\.py)` \|", (ROOT / "examples/README.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))
