"""Another client of the same ZooKeeper: small reads and small writes, one after the other, in a process of its own.

``python -m auditor.bench.audits.other_client HOSTS PATH``: for each line on standard input, it prints the duration of
each request since the last line. It ends when its input ends, so it does not outlive its parent.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kazoo.client import KazooClient  # the client that other programs usually have

PAUSE_S: Final = 0.005
"""Pause between two requests, so that the client itself is not a load: at most 200 requests per second."""
_DATA: Final = b"x" * 200


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of each request, in no particular order."""

    reads_s: Sequence[float]
    writes_s: Sequence[float]


class OtherClient:
    """The process of the other client, as a context manager."""

    def __init__(self, hosts: str, path: str) -> None:
        """Start the process.

        Args:
            hosts: connect string.
            path: of a node to create.
        """
        command = [sys.executable, "-m", "auditor.bench.audits.other_client", hosts, path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.taken()  # its answer shows that it is connected

    def __enter__(self) -> OtherClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def wait(self, seconds: float) -> None:
        """Let it send requests for some time."""
        time.sleep(seconds)

    def taken(self) -> Latencies:
        """Return the requests since the last call."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the other client was started with pipes")
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Latencies(*json.loads(self._process.stdout.readline()))


class _Taken:
    """State shared by the thread that sends requests and the one that reads the input."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: tuple[list[float], list[float]] = ([], [])

    def add(self, read_s: float, write_s: float) -> None:
        with self._lock:
            self._seconds[0].append(read_s)
            self._seconds[1].append(write_s)

    def take(self) -> tuple[list[float], list[float]]:
        with self._lock:
            taken, self._seconds = self._seconds, ([], [])
            return taken


def _requests(client: KazooClient, path: str, taken: _Taken) -> None:
    while True:
        started = time.perf_counter()
        client.get(path)
        between = time.perf_counter()
        client.set(path, _DATA)
        taken.add(between - started, time.perf_counter() - between)
        time.sleep(PAUSE_S)


def main() -> None:
    """Run until the input ends."""
    hosts, path = sys.argv[1:]
    client = KazooClient(hosts)
    client.start()
    client.create(path, _DATA)
    taken = _Taken()
    threading.Thread(target=_requests, args=(client, path, taken), daemon=True).start()
    for _ in sys.stdin:
        sys.stdout.write(f"{json.dumps(taken.take())}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
