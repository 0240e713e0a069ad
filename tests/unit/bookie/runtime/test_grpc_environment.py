"""A process with a gRPC server must be able to start others by forking, as PySpark starts Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import PROGRAM_S

FIRST_LOOK = """
import importlib, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print("grpc loaded with", os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
            sys.meta_path.remove(self)

sys.meta_path.insert(0, Watch())
import auditor.cli.main
importlib.import_module("grpc")
"""
PROGRAM = """
import asyncio, subprocess, sys, threading

import auditor.cli.main
import grpc.aio

# Whatever else wants the processor makes room for threads of gRPC between the steps of a fork.
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]

def fork_and_wait():
    # With a function to call in the child there is a real fork, and whoever asked to be told of forks is told.
    codes = [subprocess.Popen(["/bin/true"], preexec_fn=int).wait(60) for _ in range(10)]
    assert not any(codes), codes

async def serve_and_fork():
    for _ in range(15):
        server = grpc.aio.server()
        server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await asyncio.to_thread(fork_and_wait)
        await server.stop(0)

try:
    asyncio.run(serve_and_fork())
finally:
    for process in busy:
        process.kill()
"""


def run(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )


def test_grpc_is_loaded_after_its_fork_support_is_disabled(tmp_path: Path) -> None:
    ended = run(tmp_path, FIRST_LOOK)
    assert ended.stdout.splitlines() == ["grpc loaded with false"], ended.stderr


@pytest.mark.long
def test_a_child_forked_while_a_server_runs_starts_its_program(tmp_path: Path) -> None:
    """This test searches for a race on two busy cores; the test above detects the usual cause."""
    ended = run(tmp_path, PROGRAM)
    assert ended.returncode == 0, ended.stderr
