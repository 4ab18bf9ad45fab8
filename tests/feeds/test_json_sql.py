"""The JSON engine of a process, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

# As the gateway of Spark does: a thread that nobody stops has decoded something.
_DECODED_IN_A_DAEMON_THREAD = """
import threading, time
from keytide.feeds.json_columns import query

decoded = threading.Event()

def decode():
    print(query("SELECT 1").num_rows)
    decoded.set()
    time.sleep(60)

threading.Thread(target=decode, daemon=True).start()
decoded.wait()
"""


@pytest.mark.takes_turns
def test_process_that_decoded_in_a_thread_without_end_leaves_in_silence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DECODED_IN_A_DAEMON_THREAD],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
