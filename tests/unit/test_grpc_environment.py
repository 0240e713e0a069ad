"""A process that serves over gRPC must be able to start others by forking, as PySpark starts Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_child_forked_beside_a_server_lives_to_become_its_program(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
