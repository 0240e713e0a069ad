"""The events of the service, for metrics.

The methods are called on the event loop and must not block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from typing_extensions import override

from bookie.model.run import RunRecord

_log = logging.getLogger(__name__)


class ServiceEvents(Protocol):
    """Receives the events."""

    def leadership_changed(self, is_leader: bool) -> None:
        """This process became the leader, or is not the leader any more."""
        ...

    def run_started(self, record: RunRecord) -> None:
        """A run of this process began."""
        ...

    def run_ended(self, record: RunRecord) -> None:
        """A run of this process ended, with success or without."""
        ...

    def loss_audited(self, seconds: float) -> None:
        """A lost bookie's ledgers are marked, ``seconds`` after it was first seen down."""
        ...


class EventFanout(ServiceEvents):
    """Passes every event on to all of ``sinks``. Failures of a sink are logged: a metric must not end an audit."""

    def __init__(self, sinks: Sequence[ServiceEvents] = ()) -> None:
        self._sinks = tuple(sinks)

    @override
    def leadership_changed(self, is_leader: bool) -> None:
        self._notify(lambda sink: sink.leadership_changed(is_leader))

    @override
    def run_started(self, record: RunRecord) -> None:
        self._notify(lambda sink: sink.run_started(record))

    @override
    def run_ended(self, record: RunRecord) -> None:
        self._notify(lambda sink: sink.run_ended(record))

    @override
    def loss_audited(self, seconds: float) -> None:
        self._notify(lambda sink: sink.loss_audited(seconds))

    def _notify(self, event: Callable[[ServiceEvents], None]) -> None:
        for sink in self._sinks:
            try:
                event(sink)
            except Exception:  # noqa: BLE001  # the boundary to who only counts
                _log.exception("an event was not counted")
