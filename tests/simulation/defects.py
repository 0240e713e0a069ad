"""All planted defects, and which safety rule each of them breaks."""

from collections.abc import Mapping
from typing import Final

from tests.simulation.planted_client import CLIENT_DEFECTS
from tests.simulation.planted_placement import PLACEMENT_DEFECTS
from tests.simulation.planted_repair import REPAIR_DEFECTS
from tests.simulation.planted_storage import STORAGE_DEFECTS
from tests.simulation.planted_turns import TURN_DEFECTS
from tests.simulation.planting import Defect
from tests.simulation.variation import FIRST_WITH_HARSHNESS

DEFECTS: dict[str, Defect] = {
    **STORAGE_DEFECTS,
    **CLIENT_DEFECTS,
    **REPAIR_DEFECTS,
    **TURN_DEFECTS,
    **PLACEMENT_DEFECTS,
}

SAFETY_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "S1": ("repair-without-lock",),
    "S2": ("open-fragment-copied",),
    "S3": ("copy-without-recovery-flag",),
    "S4": ("metadata-overwritten",),
    "S5": ("task-deleted-blindly",),
    "S6": ("timeout-is-denial", "corrupt-is-absent", "loss-not-recorded"),
    "S7": ("disable-ignored",),
    "S8": ("read-only-target",),
    "S9": ("member-twice",),
    "S10": ("copies-packed-again",),
    "S11": ("copies-not-waited-for",),
    "S12": ("brake-ignored",),
    "S13": ("collected-at-first-check",),
    "S14": ("turn-outlives-session", "own-lock-kept"),
    "S15": ("deletion-is-failure",),
    "S16": ("repair-without-lock",),
    "S17": ("fence-in-memory", "fence-forgotten"),
    "S18": ("stale-acks",),
    "S19": ("boundary-one-short",),
    "S20": ("partial-scan-completes",),
}
"""The defects that break each safety rule of docs/invariants.md."""

SEARCHED_IN: Final[Mapping[str, str]] = {
    "absence-is-denial": "lost witness",
    "acks-during-change": "gray",
    "change-ignores-state": "new disks",
    "close-over-close": "zombie writer",
    "collected-at-first-check": "collector race",
    "copy-progress-ignored": "repair",
    "copy-without-recovery-flag": "new disks",
    "corruption-is-denial": "rot",
    "critical-not-preferred": "repair",
    "debt-not-searched": "placement",
    "debt-not-recorded": "placement",
    "cut-off-log-kept": "power loss",
    "delay-not-respected": "repair",
    "deletion-is-failure": "deletion",
    "denial-after-judgement-counts": "lost witness",
    "disable-ignored": "repair",
    "failure-demotes": "repair",
    "failed-directory-trusted": "ledger directories",
    "fence-forgotten": "new disks",
    "incarnation-unchecked": "new disks",
    "index-not-reopened": "full disk",
    "journal-damage-skipped": "damaged journal",
    "limbo-ends-early": "beyond quorum",
    "limbo-is-denial": "beyond quorum",
    "list-before-each-task": "repair",
    "own-lock-kept": "collector race",
    "log-id-reused": "ledger directories",
    "loss-not-recorded": "lost witness",
    "lost-directory-listed": "ledger directories",
    "lost-disks-not-urgent": "new disks",
    "memory-by-mean-size": "repair",
    "moved-before-copied": "placement",
    "moves-first": "placement",
    "named-last-is-end": "one loss after another",
    "never-parked": "gray",
    "new-cookie-ignored": "lost witness",
    "recovery-starts-at-zero": "power loss",
    "others-left-out": "accepted losses",
    "partial-scan-completes": "clock jumps",
    "pull-counts-unstored": "placement",
    "pull-ends-early": "placement",
    "pull-skips-entry": "placement",
    "pull-unverified": "placement",
    "read-only-target": "gray",
    "recovery-does-not-fence-reads": "zombie writer",
    "repair-without-lock": "new disks",
    "turn-outlives-session": "repair",
    "stale-acks": "full disk",
    "superseded-not-counted": "repair",
    "two-states-of-a-ledger": "beyond quorum",
    "unknown-outcome-is-done": "lost writes",
}
"""The profiles in which to search for rare defects. All other defects are searched for in all profiles in turn."""

SEARCHED_FROM: Final[Mapping[str, int]] = {
    "named-last-is-end": FIRST_WITH_HARSHNESS,
}
"""The first seeds for defects that earlier histories hardly ever show. The others are searched for from seed 0 on."""
