"""The same error of a task has one message, whichever way Spark reports it."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from keytide.spark.error_translation import file_errors, on_driver, reason_of

RAISED = """Traceback (most recent call last):
  File "feed.py", line 4, in per_hour
    return row["n"] // hours
           ~~~~~~~~~^^~~~~~~
ZeroDivisionError: integer division or modulo by zero
"""

REPORTS = {
    "as a Python error": PySparkException(
        f"An exception was thrown from the Python worker:\n{RAISED}"
    ),
    "with the stack of the JVM": PySparkException(
        f"[PYTHON_EXCEPTION] An exception was thrown:\n{RAISED}\n\nJVM stacktrace:\n"
        "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION]\n\tat org.apache.spark.A"
    ),
    "as a plain Java error": Py4JError(
        "An error occurred while calling o41.collectToPython.\n: org.apache.spark.SparkException: "
        "Job aborted due to stage failure: Task 3 in stage 44.0 failed 2 times, most recent "
        "failure: Lost task 3.1: org.apache.spark.api.python.PythonException: An exception was "
        f"thrown from the Python worker:\n{RAISED}\n\tat org.apache.spark.A\nDriver stacktrace:"
    ),
    "inside another error of Python": PySparkException(
        f"{RAISED}\nDuring handling of the above exception, another one occurred:\n\n{RAISED}"
    ),
}


@pytest.mark.parametrize("report", REPORTS)
def test_error_of_python_code_keeps_its_type(report: str) -> None:
    with pytest.raises(PySparkException) as raised, on_driver():
        raise REPORTS[report]
    assert reason_of(raised.value) == "ZeroDivisionError: integer division or modulo by zero"


@pytest.mark.parametrize("report", REPORTS)
def test_error_of_python_code_over_files_keeps_its_type(report: str) -> None:
    with (
        pytest.raises(Exception, match=r"ZeroDivisionError: integer division or modulo by zero$"),
        file_errors("feed/*.json", "d.t"),
    ):
        raise REPORTS[report]
