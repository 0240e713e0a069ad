"""Which errors of a call to Spark's driver show that the driver has ended."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.java_gateway import GatewayConnection, GatewayParameters
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from spark_jobs import session
from spark_jobs.session import is_alive
from tests.deadlines import PROGRAM_S


def failing(error: Exception) -> SparkSession:
    def sc() -> Any:
        raise error

    return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=sc))))


def of_network(cause: OSError) -> Py4JNetworkError:
    """Return the error that py4j raises for an error of its socket."""
    error = Py4JNetworkError("An error occurred while trying to connect to the Java server")
    error.__context__ = cause
    return error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_do_not_mean_that_spark_has_ended(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert is_alive(failing(error))
    assert is_alive(failing(of_network(error)))


@pytest.mark.parametrize("error", [ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Py4JError("no answer")])
def test_a_driver_that_does_not_answer_has_ended_unless_no_file_can_be_opened(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_alive(failing(error))
    monkeypatch.setattr(session, "can_open_files", lambda count: False)
    assert is_alive(failing(error))


def test_a_stopped_session_is_not_alive() -> None:
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    assert not is_alive(cast(SparkSession, stopped))


def connect_without_files() -> None:
    """Print whether Spark counts as alive after py4j could not open a socket in this process."""
    room = [socket.socket() for _ in range(2)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (room[-1].fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        GatewayConnection(GatewayParameters()).start()
    except (Py4JError, OSError) as error:
        for each in room:
            each.close()
        print(is_alive(failing(error)))


def test_errors_of_py4j_mention_too_many_open_files() -> None:
    script = f"from {__name__} import connect_without_files; connect_without_files()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    assert done.stdout == "True\n"
