"""What all phases of the start use."""

from __future__ import annotations

import random
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from bookie.metadata.cluster import Cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server.administration.servicer import AdministrationServicer
from bookie.server.apache.listener import ApacheListener
from bookie.server.grpc.server import GrpcServer
from bookie.server.settings import BookieSettings


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that all start phases use. ``stack`` undoes each phase, however the process ends."""

    settings: BookieSettings
    stack: AsyncExitStack
    metrics: MetricSet
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)

    def start_background_task(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Start a task that is cancelled at the end of the process."""
        self.stack.push_async_callback(cancel, guarded(name, work))


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of the cluster, in an open session."""

    store: ZooKeeperStore
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class Listeners:
    """The servers of the two protocols, with their bound ports."""

    server: GrpcServer
    apache: ApacheListener
    administration: AdministrationServicer
    port: int
    apache_port: int | None


def say(line: str) -> None:
    """Write a line to standard output at once, for those who wait for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
