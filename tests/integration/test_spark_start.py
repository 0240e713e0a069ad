"""Starting Spark leaves Ctrl-C to whoever runs the process."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import signal
from spark_jobs.session import SessionSettings, spark_session

before = signal.getsignal(signal.SIGINT)
with spark_session(SessionSettings(master="local[1]")) as spark:
    assert signal.getsignal(signal.SIGINT) is before, "Spark's handler breaks the call that is under way"
    print(spark.range(3).count())
"""


def test_spark_does_not_take_ctrl_c_over() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
