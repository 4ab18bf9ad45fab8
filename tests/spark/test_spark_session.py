"""A session that works, a Java that is found, and plain words where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.spark.error_translation import check_python, keytide_error
from keytide.spark.sessions import find_java

THIS = "{}.{}".format(*sys.version_info[:2])
OLD, NEW = 'openjdk version "1.8.0_402"', 'openjdk version "21.0.2" 2024-01-16'


def make_java(home: Path, answer: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", NEW), make_java(tmp_path / "other", NEW)
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, ())
    assert (found.home, found.version, found.found_by) == (home, 21, "JAVA_HOME")


def test_java_on_the_path_is_used_where_java_home_is_too_old(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", OLD), make_java(tmp_path / "other", NEW)
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, ())
    assert (found.home, found.version, found.found_by) == (other, 21, "the PATH")


def test_installed_java_is_found_when_nothing_points_to_it(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm" / "jdk-21", NEW)
    found = find_java({"PATH": ""}, (tmp_path / "jvm",))
    assert (found.home, found.version) == (home, 21)


def test_old_java_is_named_with_the_way_out(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", OLD)
    with pytest.raises(kt.SetupError) as error:
        find_java({"JAVA_HOME": str(home), "PATH": ""}, ())
    message = str(error.value)
    assert f"JAVA_HOME ({home}) has Java 8" in message
    assert "Java 17 or newer" in message
    assert "openjdk-17" in message


def test_missing_java_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        kt.SetupError, match="JAVA_HOME is not set and there is no java on the PATH"
    ):
        find_java({"PATH": str(tmp_path)}, ())


def test_broken_java_home_is_said(tmp_path: Path) -> None:
    with pytest.raises(kt.SetupError, match="no working bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, ())


def make_python(folder: Path, answer: str) -> str:
    """A Python that answers what it is asked about itself."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    return str(python)


class LocalSession:
    """As much of a session as says which Python its tasks get."""

    def __init__(self, python: str, master: str = "local[1]") -> None:
        self.sparkContext = self
        self.master, self.pythonExec = master, python
        self.conf: dict[str, str] = {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("3.9", r"is Python 3\.9, but this is Python 3\."),
        (f"{THIS} keytide polars", "cannot import keytide, polars"),
    ],
)
def test_python_in_which_tasks_would_die_is_said_with_the_way_out(
    tmp_path: Path, answer: str, message: str
) -> None:
    session = LocalSession(make_python(tmp_path / "bin", answer))
    with pytest.raises(kt.SetupError, match=f"{message}.*PYSPARK_PYTHON"):
        check_python(session)


def test_python_that_does_not_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(kt.SetupError, match="cannot be run"):
        check_python(LocalSession(str(tmp_path / "nowhere")))


def test_this_python_and_those_of_a_cluster_are_taken(tmp_path: Path) -> None:
    check_python(LocalSession(make_python(tmp_path / "bin", THIS)))
    check_python(LocalSession("/nowhere", "spark://host:7077"))


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'keytide'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than driver: 3.11",
    ],
)
def test_what_workers_say_of_their_python_is_explained(text: str) -> None:
    error = keytide_error(f"An exception was thrown\n{text}\n\nDriver stacktrace: ...")
    assert isinstance(error, kt.SetupError)
    assert text in str(error)
    assert "PYSPARK_PYTHON" in str(error)


@pytest.mark.takes_turns
def test_spark_is_loaded_on_demand() -> None:
    code = (
        "import sys, keytide as kt\n"
        "before = 'pyspark' in sys.modules\n"
        "kt.spark.session\n"
        "print(before, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_missing_pyspark_is_said_with_the_extra_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import keytide as kt\n"
        "try:\n"
        "    kt.spark.session()\n"
        "except kt.SetupError as error:\n"
        "    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'keytide[spark]'" in done.stdout


@pytest.mark.spark
def test_session_is_well_set(spark: Any) -> None:
    keys = ("spark.sql.session.timeZone", "spark.sql.execution.arrow.pyspark.enabled")
    assert [spark.conf.get(key) for key in keys] == ["UTC", "true"]


@pytest.mark.takes_turns
@pytest.mark.spark
def test_new_session_takes_the_format_too(spark: Any, tmp_path: Path) -> None:
    other = spark.newSession()
    kt.spark.register(other)
    with pytest.raises(kt.NotFoundError, match="does not exist"):
        other.read.format("keytide").load(str(tmp_path))


@pytest.mark.spark
def test_running_session_is_returned_with_new_settings(spark: Any) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    try:
        again = kt.spark.session(spark_sql_ansi_enabled=before != "true")
        assert again is spark
        assert spark.conf.get("spark.sql.ansi.enabled") != before
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


LISTING = """
import importlib, sys, zipfile
from keytide.spark.worker import set_up

def add(archive, module, text=""):
    with zipfile.ZipFile(f"{sys.argv[1]}/{archive}.zip", "a") as file:
        file.writestr(f"{module}.py", text)

def can_import(module):
    importlib.invalidate_caches()
    return importlib.util.find_spec(module) is not None

add("other", "other_first")
sys.path.append(f"{sys.argv[1]}/other.zip")
for archive in ("kept", "other"):
    importlib.import_module(f"{archive}_first")
set_up()
for archive in ("kept", "other"):
    add(archive, f"{archive}_second")
    print(can_import(f"{archive}_second"))
"""


@pytest.mark.takes_turns
def test_a_worker_lists_archives_anew_but_for_those_it_was_started_with(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "kept.zip", "w") as file:
        file.writestr("kept_first.py", "")
    command = [sys.executable, "-c", LISTING, str(tmp_path)]
    started_with = os.environ | {"PYTHONPATH": f"{tmp_path}/kept.zip"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=started_with)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.takes_turns
def test_worker_that_spark_hangs_up_on_prints_no_traceback_but_those_of_other_errors() -> None:
    code = """
import sys, traceback
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
from keytide.spark.worker import ignore_broken_pipes

ignore_broken_pipes()
for error in (BrokenPipeError("hung up"), ConnectionResetError("cut"), ValueError("wrong")):
    try:
        raise error
    except Exception:
        traceback.print_exc()
"""
    printed = {
        main: [line.partition(":")[0] for line in done.stderr.splitlines() if "Error:" in line]
        for main in ("pyspark.daemon", "of_a_user")
        for done in [
            subprocess.run([sys.executable, "-c", code, main], capture_output=True, text=True)
        ]
    }
    assert printed == {
        "pyspark.daemon": ["ConnectionResetError", "ValueError"],
        "of_a_user": ["BrokenPipeError", "ConnectionResetError", "ValueError"],
    }


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("main", "arguments", "environment", "threads"),
    [
        ("pyspark.daemon", ["pyspark.worker"], {}, "1"),
        ("pyspark.daemon", ["pyspark.worker"], {"OMP_NUM_THREADS": "3"}, "3"),
        ("pyspark.worker", ["9999"], {}, "1"),
        ("pyspark.daemon", ["pyspark.worker"], {"POLARS_MAX_THREADS": "5"}, "5"),
        ("pyspark.daemon", ["pyspark.sql.worker.write_into_data_source"], {}, "None"),
        ("job", [], {}, "None"),
    ],
)
def test_workers_start_a_thread_of_polars_for_each_core_of_a_task(
    main: str, arguments: list[str], environment: dict[str, str], threads: str
) -> None:
    code = (
        "import os, sys, types; "
        f"sys.modules['__main__'].__spec__ = types.SimpleNamespace(name={main!r}); "
        "import keytide.spark.runner; print(os.environ.get('POLARS_MAX_THREADS'))"
    )
    unset = {"POLARS_MAX_THREADS", "OMP_NUM_THREADS"}
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=True, env={**inherited, **environment},
    )  # fmt: skip
    assert done.stdout.strip() == threads
