"""The rendering of metrics: the format for each request, and one rendering shared by many requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookie.runtime.telemetry.metrics import MetricSet, SharedRendering, render
from tests.deadlines import STATE_S
from tests.worlds.clocks import ManualClock

TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Rendering:
    """A rendering whose number is the value of a gauge."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = MetricSet("bookie", "1", ())
        self.count = 0
        self.shared = SharedRendering(self.metrics.registry, self.clock.monotonic_s, self.update)

    def update(self) -> None:
        self.count += 1
        self.metrics.gauge("bkheal_zookeeper_session_connected").set(self.count)

    def shown(self, accept: str = "", accept_encoding: str = "") -> int:
        body = self.shared.exposition(accept, accept_encoding).body.decode()
        [line] = [line for line in body.splitlines() if line.startswith("bkheal_zookeeper_session_connected ")]
        return int(float(line.split()[1]))


def test_a_rendering_is_shared_for_a_second() -> None:
    rendering = Rendering()
    for now_s, expected in ((0, 1), (0.5, 1), (0.99, 1), (1, 2), (1.9, 2), (600, 3)):
        rendering.clock.now_s = now_s
        assert [rendering.shown() for _ in range(3)] == [expected] * 3


def test_each_format_has_one_rendering_whatever_the_headers() -> None:
    rendering = Rendering()
    shared = rendering.shared
    types = [dict(shared.exposition(accept).headers)["Content-Type"] for accept in ("", "text/plain", OPENMETRICS)]
    assert [kind.partition("; charset")[0] for kind in types] == [TEXT, TEXT, OPENMETRICS]
    assert rendering.count == 2
    assert ("Content-Encoding", "gzip") in shared.exposition("", "br, gzip;q=0.5").headers
    for number in range(50):
        for media_type in ("text/plain", "application/openmetrics-text", "image/png"):
            for more in ("", f"; escaping=x{number}", f"; version=1.0.0; q=0.{number}", f"; version={number}"):
                shared.exposition(media_type + more, ("gzip", f"x{number}")[number % 2])
    assert rendering.count == 6, "three formats, each with and without compression"


def test_requests_at_the_same_time_wait_for_one_rendering() -> None:
    begun, go_on, count, clock = threading.Event(), threading.Event(), 0, ManualClock()

    def update() -> None:
        nonlocal count
        count += 1
        begun.set()
        go_on.wait(STATE_S)
        clock.now_s += 60  # rendering takes longer than its result is shared

    shared = SharedRendering(MetricSet("bookie", "1", ()).registry, clock.monotonic_s, update)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(shared.exposition) for _ in range(8)]
        assert begun.wait(STATE_S)
        go_on.set()
        assert len({id(one.result(STATE_S)) for one in asked}) == 1
    assert count == 1


def test_a_failed_rendering_is_not_shared() -> None:
    faults = iter([ZeroDivisionError()])

    def update() -> None:
        for fault in faults:
            raise fault

    shared = SharedRendering(MetricSet("bookie", "1", ()).registry, ManualClock().monotonic_s, update)
    with pytest.raises(ZeroDivisionError):
        shared.exposition()
    assert shared.exposition().body


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("text/plain; version=1.0.0; escaping=allow-utf-8", "text/plain; version=1.0.0"),
        ("application/openmetrics-text", OPENMETRICS),
        ("image/png, application/openmetrics-text ; q=0.5 ; version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT),
        ("application/openmetrics-text; version=zzz", TEXT),
        ("text/plain; version=1.z", TEXT),
        ("application/openmetrics-text; version=zzz, application/openmetrics-text; version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text; version=" + "9" * 5000, TEXT),
        (";;,=;version", TEXT),
    ],
)
def test_the_first_supported_format_is_chosen(accept: str, expected: str) -> None:
    shown = render(MetricSet("bookie", "1", ()).registry, accept)
    assert dict(shown.headers)["Content-Type"].startswith(expected)
