"""The profiles of histories: which faults occur, and how often.

Each seed draws a profile and a random part of its faults (swarm testing). Rates are faults per virtual second over the
whole history. The number of a trigger is the probability of its fault at the event. ``wipes_max`` limits losses to
those that the quorums survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Quorums = tuple[int, int, int]

USUAL: Final[tuple[Quorums, ...]] = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 2), (3, 2, 1))
STRIPED: Final[tuple[Quorums, ...]] = ((4, 3, 2), (5, 3, 2), (4, 2, 2), (5, 3, 3), (5, 2, 2))
SAFE: Final[tuple[Quorums, ...]] = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (2, 2, 2))
"""The losses that every acknowledged entry survives: one disk."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A set of faults, and the settings of the histories with them.

    Attributes:
        rates: fault name to faults per virtual second.
        triggers: event to (fault name, chance) pairs.
        pace_s: mean pause of a writer between bursts.
        add_timeout_s: timeout of a writer's adds. With a long one, adds arrive after the writer was replaced.
        collect_s: pause between a bookie's collections.
        trouble_s: longest time with faults, in virtual seconds.
        lost_max: how many bookies may be lost permanently.
        has_fault_points: whether unlikely branches of the code may be forced.
        is_stubborn: one bookie may continue to refuse copies while the rest of the cluster heals.
        is_large: ledgers are written in one go before the first fault, and some are large.
        has_racks: the bookies are in racks, and copies are placed, judged and moved by them.
        joins_max: how many bookies may join.
        has_directories: each of bkheal's bookies has one to three ledger directories. No fault damages single entries.
        accepts_losses: an operator accepts the losses that destroyed disks cause. All other entries must get all their
            copies again.
    """

    name: str
    rates: Mapping[str, float]
    triggers: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    quorums: tuple[Quorums, ...] = USUAL + STRIPED
    bookies: tuple[int, int] = (5, 7)
    writers: tuple[int, int] = (2, 3)
    entries: tuple[int, int] = (12, 30)
    pace_s: float = 0.15
    burst: int = 5
    add_timeout_s: float = 1.0
    wipes_max: int = 0
    left_open: float = 0.3
    is_idle: bool = False
    deletes: float = 0.0
    collect_s: float = 2.5
    trouble_s: float = 12.0
    is_beyond_quorum: bool = False
    lost_max: int = 0
    has_fault_points: bool = True
    is_stubborn: bool = False
    is_large: bool = False
    has_racks: bool = False
    joins_max: int = 0
    has_directories: bool = False
    accepts_losses: bool = False


PROFILES: Final[tuple[Profile, ...]] = (
    Profile(
        "plain",
        {
            "kill bookie": 0.25,
            "cut link": 0.3,
            "slow link": 0.2,
            "recover": 0.1,
            "lose store answers": 0.2,
            "drain": 0.1,
        },
        {"sent": (("recover", 0.01), ("kill bookie", 0.01))},
    ),
    Profile(
        "zombie writer",
        {"delay adds": 0.9, "lose fences": 0.8, "kill bookie": 0.1, "cut link": 0.2, "freeze client": 0.2},
        {
            "sent": (("recover", 0.04), ("delay adds", 0.05), ("stretch and recover", 0.06)),
            "acked": (("recover", 0.02), ("lose fences", 0.02)),
        },
        quorums=((3, 3, 2), (3, 2, 1), (4, 3, 2), (2, 2, 1), (3, 3, 1), (3, 2, 2)),
        add_timeout_s=6.0,
        pace_s=0.25,
        burst=2,
    ),
    Profile(
        "power loss",
        {"power loss of one": 0.3, "power loss of all": 0.15, "recover": 0.15, "stall disk": 0.3},
        {
            "acked": (("power loss of one", 0.01), ("power loss of all", 0.004)),
            "fenced": (("power loss of one", 0.15), ("power loss of all", 0.05)),
            "storing": (("power loss here", 0.01),),
        },
    ),
    Profile(
        "collector race",
        {"kill bookie": 0.4, "delete lock": 0.8, "lag store": 0.6, "slow store": 0.4, "lose session": 0.1},
        {
            "sent": (("kill bookie", 0.01),),
            "copied": (("delete lock", 0.3), ("slow workers", 0.2)),
            "marked": (("slow collector", 0.2), ("kill bookie", 0.1)),
            "locked": (
                ("unlock soon", 0.6),
                ("slow collector", 0.4),
                ("kill bookie", 0.1),
                ("interrupt collector", 0.3),
            ),
        },
        writers=(3, 4),
        entries=(6, 16),
        deletes=0.3,
        collect_s=0.6,
    ),
    Profile(
        "new disks",
        {"recover": 0.3, "kill bookie": 0.1, "delay adds": 0.5, "kill client": 0.05, "wipe bookie": 0.1},
        {
            "sent": (("recover", 0.03), ("wipe bookie", 0.005)),
            "acked": (("wipe bookie", 0.003),),
            "idle": (("recover", 0.6),),
            "fenced": (("wipe bookie", 0.04),),
            "copied": (("wipe soon", 0.3), ("slow workers", 0.3)),
        },
        quorums=SAFE,
        wipes_max=1,
        add_timeout_s=3.0,
        is_idle=True,
        trouble_s=16.0,
    ),
    Profile(
        "lost witness",
        {"jump clock": 0.05, "slow bookie": 0.1},
        {"acked": (("wipe one and lose another", 0.04),)},
        quorums=((3, 3, 2), (4, 3, 2), (3, 3, 3)),
        wipes_max=1,
        left_open=1.0,
        trouble_s=14.0,
    ),
    Profile(
        "repair",
        {
            "lose for good": 0.5,
            "lose a worker's session": 0.05,
            "kill bookie": 0.04,
            "drain": 0.03,
            "disable": 0.02,
            "limit copies": 0.05,
        },
        {
            "copied": (
                ("busy bookie", 0.004),
                ("lose a worker's session", 0.003),
                ("cut worker", 0.01),
                ("refuse everywhere", 0.01),
            )
        },
        quorums=((3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 3, 2)),
        bookies=(6, 7),
        writers=(2, 2),
        left_open=0.0,
        trouble_s=60.0,
        lost_max=2,
        has_fault_points=False,
        is_large=True,
    ),
    Profile(
        "idle writer",
        {"kill bookie": 0.5, "cut link": 0.2, "recover": 0.1},
        {"idle": (("kill bookie", 0.5), ("recover", 0.2))},
        is_idle=True,
    ),
    Profile(
        "store storm",
        {
            "lose all sessions": 0.2,
            "lose session": 0.3,
            "interrupt session": 0.3,
            "lose store answers": 0.5,
            "slow store": 0.3,
            "lag store": 0.3,
            "kill bookie": 0.15,
            "recover": 0.1,
            "drain": 0.1,
            "disable": 0.05,
        },
    ),
    Profile(
        "rot",
        {"rot": 0.6, "kill bookie": 0.2, "recover": 0.2},
        {"sent": (("recover", 0.02),), "acked": (("rot and recover", 0.005),), "idle": (("rot and recover", 0.7),)},
        quorums=SAFE,
        is_idle=True,
    ),
    Profile(
        "full disk",
        {"fill disk": 0.5, "recover": 0.15, "cut link": 0.2},
    ),
    Profile(
        "gray",
        {
            "slow bookie": 0.4,
            "cut one way": 0.5,
            "freeze bookie": 0.3,
            "recover": 0.15,
            "stall disk": 0.2,
            "busy bookie": 0.1,
            "read-only bookie": 0.4,
            "kill bookie": 0.3,
        },
        {"sent": (("recover", 0.02), ("cut one way", 0.02))},
        is_stubborn=True,
    ),
    Profile(
        "deletion",
        {"kill bookie": 0.3, "recover": 0.3, "delay adds": 0.5, "lag store": 0.2},
        {"sent": (("recover", 0.03), ("delete", 0.01)), "acked": (("delete", 0.01),)},
        add_timeout_s=4.0,
        deletes=0.6,
        collect_s=1.0,
    ),
    Profile(
        "mass loss",
        {"kill most bookies": 0.2, "lose all sessions": 0.1, "kill bookie": 0.3, "delete lock": 0.3, "recover": 0.8},
        {"sent": (("recover", 0.02),)},
        quorums=((3, 3, 3), (2, 2, 2), (3, 2, 2), (5, 3, 3), (3, 3, 2)),
    ),
    Profile(
        "beyond quorum",
        {"wipe bookie": 0.5, "kill bookie": 0.2, "recover": 0.2},
        {"acked": (("wipe bookie", 0.03),)},
        wipes_max=4,
        is_beyond_quorum=True,
    ),
    Profile(
        "clock jumps",
        {
            "jump clock": 1.5,
            "kill bookie": 0.3,
            "power loss of one": 0.1,
            "wipe bookie": 0.05,
            "lose session": 0.2,
            "lag store": 0.2,
            "recover": 0.2,
        },
        {
            "acked": (("jump clock", 0.02),),
            "fenced": (("jump clock", 0.2),),
            "copied": (("jump clock", 0.2), ("wipe soon", 0.1)),
            "marked": (("jump clock", 0.2),),
        },
        quorums=SAFE,
        wipes_max=1,
        deletes=0.2,
        collect_s=1.0,
    ),
    Profile(
        "placement",
        {
            "kill bookie": 0.1,
            "kill rack": 0.12,
            "lose for good": 0.1,
            "join": 0.1,
            "lose a worker's session": 0.05,
            "busy bookie": 0.05,
        },
        {"copied": (("kill bookie", 0.01), ("lose a worker's session", 0.01), ("cut worker", 0.01))},
        quorums=((3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 3, 2)),
        bookies=(6, 7),
        left_open=0.1,
        collect_s=1.0,
        trouble_s=40.0,
        lost_max=1,
        has_racks=True,
        joins_max=1,
    ),
)

NAMED: Final[tuple[Profile, ...]] = (
    *PROFILES,
    Profile(
        "damaged journal",
        {"recover": 0.3, "kill bookie": 0.1, "delay adds": 0.3, "kill client": 0.05, "damage journal": 0.1},
        {
            "sent": (("recover", 0.03), ("damage journal", 0.005)),
            "acked": (("damage journal", 0.01),),
            "idle": (("recover", 0.6),),
            "fenced": (("damage journal", 0.1),),
            "copied": (("damage journal", 0.02), ("slow workers", 0.2)),
        },
        quorums=SAFE,
        wipes_max=1,
        add_timeout_s=3.0,
        is_idle=True,
        trouble_s=16.0,
    ),
    Profile(
        "one loss after another",
        {"wipe another": 1.0, "slow bookie": 0.1, "kill bookie": 0.05},
        {"acked": (("wipe another", 0.02),), "idle": (("wipe another", 0.5),)},
        quorums=SAFE,
        wipes_max=6,
        left_open=0.8,
        is_idle=True,
        trouble_s=40.0,
    ),
    Profile(
        "ledger directories",
        {
            "fail directory": 0.4,
            "hang directory": 0.3,
            "miss directory": 0.2,
            "lose directory": 0.3,
            "kill bookie": 0.6,
            "power loss of one": 0.3,
            "fill disk": 0.1,
        },
        {
            "storing": (("fail directory", 0.04), ("hang directory", 0.02), ("power loss here", 0.005)),
            "copied": (("fail directory", 0.05), ("miss directory", 0.02), ("lose directory", 0.04)),
        },
        quorums=SAFE,
        entries=(40, 80),
        pace_s=0.05,
        collect_s=1.0,
        deletes=0.2,
        trouble_s=16.0,
        has_directories=True,
    ),
    Profile(
        "accepted losses",
        {
            "destroy bookies": 0.5,
            "lose a worker's session": 0.05,
            "lose store answers": 0.1,
            "busy bookie": 0.05,
            "delete lock": 0.1,
        },
        {"copied": (("lose a worker's session", 0.01), ("cut worker", 0.02), ("delete lock", 0.01))},
        quorums=((3, 2, 2), (4, 2, 2), (5, 2, 2)),
        bookies=(7, 7),
        writers=(2, 2),
        left_open=0.0,
        trouble_s=40.0,
        lost_max=1,
        is_large=True,
        accepts_losses=True,
    ),
    Profile(
        "lost writes",
        {
            "lose a worker's write": 0.5,
            "kill bookie": 0.15,
            "recover": 0.15,
            "stop store": 0.1,
            "drain": 0.05,
            "lose session": 0.05,
        },
        {
            "sent": (("lose an ensemble change", 0.04), ("stop store", 0.003)),
            "acked": (("recover", 0.005),),
            "copied": (("lose a worker's write", 0.1), ("stop store", 0.02), ("kill bookie", 0.01)),
        },
        quorums=((2, 2, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2)),
        pace_s=0.1,
        left_open=0.2,
    ),
)
"""All profiles: those that all seeds draw, and later ones."""

FIRST_OF_ALL_PROFILES: Final = 60_000_000_000
"""Smaller seeds draw none of the later profiles, so that their histories stay the same."""
FIRST_WITH_ACCEPTED_LOSSES: Final = 80_000_100_000
"""Smaller seeds do not draw this profile, so that their histories stay the same."""
FIRST_WITH_LOST_WRITES: Final = 90_000_000_000
"""Smaller seeds do not draw the last profile, so that their histories stay the same."""


def drawn_by(seed: int) -> Profile:
    """Return the profile that a seed draws."""
    later = NAMED[:-1] if seed >= FIRST_WITH_ACCEPTED_LOSSES else NAMED[:-2]
    later = NAMED if seed >= FIRST_WITH_LOST_WRITES else later
    profiles = later if seed >= FIRST_OF_ALL_PROFILES else PROFILES
    return profiles[seed % len(profiles)]
