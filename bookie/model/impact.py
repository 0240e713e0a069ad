"""The effect of a finding on the Pulsar topics of its ledger (pure).

Source of the rules: docs/topics.md#what-a-finding-means. They describe a broker with default settings. A finding
without a missing copy has no effect.
"""

from __future__ import annotations

import enum

from bookie.model.ownership import Component, SystemRole
from bookie.model.severity import Severity


class Effect(enum.Enum):
    """The effect on clients if the entries of a ledger cannot be read. Worst first."""

    NAMESPACE_DOWN = "no topic of the namespace loads: its topic policies cannot be read"
    SYSTEM_DOWN = "a part of Pulsar that topics depend on fails"
    TOPIC_DOWN = "the topic does not load again after it was unloaded or its broker was restarted"
    NO_CONNECT = "producers and consumers that use the schema cannot connect"
    READS_STOP = "reads stop at this ledger: subscriptions with older positions do not proceed"
    COMPACTED_VIEW = "readers of the compacted topic fail"
    REWINDS = "the subscription is set back: messages are delivered again"
    DELAYED = "the index of delayed messages of the subscription cannot be read"
    UNKNOWN = "not known: the custom metadata of the ledger does not name its use"

    @property
    def rank(self) -> int:
        """Smaller is worse."""
        return _RANKS[self]


_RANKS = {effect: rank for rank, effect in enumerate(Effect)}


class Standing(enum.Enum):
    """Whether the effect is present. Worst first."""

    NOW = "now"
    """Entries cannot be read, unless a bookie returns."""
    AT_RISK = "at risk"
    """Copies are missing; the effect begins if the last ones are lost."""
    NONE = "none"
    """Every entry has its copies."""


def effect_of(component: Component, role: SystemRole | None, *, is_closed: bool) -> Effect:
    """Return the effect if the ledger cannot be read.

    Args:
        component: what the ledger contains.
        role: the role of its topic, for a system topic of Pulsar.
        is_closed: whether the ledger is closed. A topic's unclosed ledger is its last one: a broker must recover it
            before it can load the topic.
    """
    if role is not None and component in (Component.MANAGED_LEDGER, Component.COMPACTED, Component.SCHEMA):
        return Effect.NAMESPACE_DOWN if role is SystemRole.TOPIC_POLICIES else Effect.SYSTEM_DOWN
    match component:
        case Component.MANAGED_LEDGER:
            return Effect.READS_STOP if is_closed else Effect.TOPIC_DOWN
        case Component.SCHEMA:
            return Effect.NO_CONNECT
        case Component.COMPACTED:
            return Effect.COMPACTED_VIEW
        case Component.CURSOR:
            return Effect.REWINDS
        case Component.DELAYED_INDEX:
            return Effect.DELAYED
        case Component.UNKNOWN:
            return Effect.UNKNOWN


def is_unrecoverable(
    *, is_open_end: bool, copies_min: int, missing_positions: int, write_quorum: int, ack_quorum: int
) -> bool:
    """Return whether too few positions of a write set are left to determine the end of an open ledger.

    docs/formats.md#coverage: fewer than the ack quorum of each write set may be unknown. A bookie that the fragment
    names twice has one copy, but answers for two positions. So the number of missing positions is a second upper bound
    of the unknown positions in a write set.

    Args:
        is_open_end: whether the fragment is the last one of a ledger that is not closed.
        copies_min: number of copies of the entry with the fewest copies.
        missing_positions: number of positions of the fragment without a registered bookie, or with a draining one.
        write_quorum: Qw.
        ack_quorum: Qa.
    """
    return is_open_end and min(write_quorum - copies_min, missing_positions) >= ack_quorum


def standing_of(severity: Severity, *, is_end_unknown: bool) -> Standing:
    """Return whether the effect of a finding is present. For ``is_end_unknown`` see ``is_unrecoverable``."""
    if severity > Severity.BELOW_WRITE_QUORUM:
        return Standing.NONE
    return Standing.NOW if severity <= Severity.NO_LIVE_COPY or is_end_unknown else Standing.AT_RISK
