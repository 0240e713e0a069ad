"""If a signal ends Java and an audit at the same time, only the end of the audit is reported."""

from __future__ import annotations

import logging

import pytest
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler

from bookie.model.run import RunState
from spark_jobs.one_shot.run import without_lost_connections_after_stop
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.session import accept_end_of_java


@pytest.mark.parametrize(
    ("error", "is_printed"), [(EOFError(), False), (ConnectionResetError(), False), (ValueError("a defect"), True)]
)
def test_a_closed_connection_to_java_prints_no_traceback(
    error: Exception, is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with AccumulatorTCPServer(("localhost", 0), UpdateRequestHandler, "token") as server:
        accept_end_of_java(server)
        try:
            raise error
        except (EOFError, OSError, ValueError):
            server.handle_error((b"", server.socket), ("127.0.0.1", 1))
    assert bool(capsys.readouterr().err) == is_printed


def test_a_lost_connection_to_java_is_logged_only_if_the_run_was_not_stopped(caplog: pytest.LogCaptureFixture) -> None:
    gate, root = RunGate(), logging.getLogger()

    def log(module: str) -> None:
        root.handle(logging.makeLogRecord({"levelno": logging.ERROR, "msg": module, "module": module}))

    with without_lost_connections_after_stop(gate):
        log("java_gateway")
        gate.stop(Stop("ended by SIGTERM", RunState.CANCELLED, 143))
        log("java_gateway")
        log("another")
    log("java_gateway")
    assert caplog.messages == ["java_gateway", "another", "java_gateway"]
