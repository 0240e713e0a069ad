"""The objects shared by all turns of one replicator process."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicator.copying.copier import Copier
from replicator.knowledge.absence import Absences
from replicator.knowledge.damage import KnownDamage
from replicator.knowledge.returns import Returns
from replicator.knowledge.stored_again import RestoredCopyCounts
from replicator.knowledge.target_use import TargetUse
from replicator.ports import RepairPorts
from replicator.queue.grace import GracePeriods
from replicator.telemetry.events import EventSink


@dataclass(frozen=True, slots=True)
class RepairContext:
    """The way to the cluster, and what earlier turns of the process have learned about it."""

    ports: RepairPorts
    copier: Copier
    events: EventSink
    grace_periods: GracePeriods
    absences: Absences
    returns: Returns
    damage: KnownDamage = field(default_factory=KnownDamage)
    stored_again: RestoredCopyCounts = field(default_factory=RestoredCopyCounts)
    use: TargetUse = field(default_factory=TargetUse)
