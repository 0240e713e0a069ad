"""Threads for blocking calls: all of them are started, or none is left running."""

from __future__ import annotations

import threading

import pytest

from bookie.runtime.threads import started_threads

NAME = "of-this-test-"


def running() -> int:
    return sum(thread.name.startswith(NAME) for thread in threading.enumerate())


def test_work_starts_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = started_threads(3, NAME)
    assert running() == 3
    monkeypatch.setattr(threading.Thread, "start", None)  # no further thread can be started
    together = threading.Barrier(3)
    waits = [threads.submit(together.wait) for _ in range(3)]
    assert sorted(wait.result() for wait in waits) == [0, 1, 2]
    threads.shutdown()
    assert running() == 0


def test_too_few_threads_are_an_error_and_none_keeps_running(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if running() >= 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(OSError, match=r"3 threads cannot be started.*ulimit -u"):
        started_threads(3, NAME)
    for thread in threading.enumerate():
        if thread.name.startswith(NAME):
            thread.join()
    assert running() == 0
