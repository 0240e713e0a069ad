"""All planted defects, and which safety rule each of them breaks."""

from collections.abc import Mapping
from typing import Final

from tests.simulation.planted_client import CLIENT_DEFECTS
from tests.simulation.planted_placement import PLACEMENT_DEFECTS
from tests.simulation.planted_repair import REPAIR_DEFECTS
from tests.simulation.planted_storage import STORAGE_DEFECTS
from tests.simulation.planted_turns import TURN_DEFECTS
from tests.simulation.planting import Defect

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
    "S6": ("silence-is-denial", "corrupt-is-absent", "loss-forgotten"),
    "S7": ("disable-ignored",),
    "S8": ("read-only-target",),
    "S9": ("member-twice",),
    "S10": ("copies-packed-anew",),
    "S11": ("copies-not-waited-for",),
    "S12": ("brake-ignored",),
    "S13": ("collected-at-first-look",),
    "S14": ("session-outlived", "lock-left-behind"),
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
    "collected-at-first-look": "collector race",
    "copies-start-again": "repair",
    "copy-without-recovery-flag": "new disks",
    "corruption-is-denial": "rot",
    "critical-waits": "repair",
    "debt-never-paid": "placement",
    "debt-not-recorded": "placement",
    "cut-off-log-kept": "power loss",
    "delay-not-respected": "repair",
    "deletion-is-failure": "deletion",
    "denials-always-count": "lost witness",
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
    "lock-left-behind": "collector race",
    "log-id-used-again": "ledger directories",
    "loss-forgotten": "lost witness",
    "lost-directory-listed": "ledger directories",
    "lost-disks-not-urgent": "new disks",
    "memory-by-guess": "repair",
    "moved-before-copied": "placement",
    "moves-first": "placement",
    "named-last-is-last": "one loss after another",
    "never-parked": "gray",
    "new-cookie-ignored": "lost witness",
    "no-floor": "power loss",
    "partial-scan-completes": "clock jumps",
    "pull-counts-unstored": "placement",
    "pull-ends-early": "placement",
    "pull-goes-on-behind": "placement",
    "pull-unverified": "placement",
    "read-only-target": "gray",
    "recovery-does-not-fence-reads": "zombie writer",
    "repair-without-lock": "new disks",
    "session-outlived": "repair",
    "stale-acks": "full disk",
    "superseded-not-counted": "repair",
    "two-states-of-a-ledger": "beyond quorum",
}
"""The profiles in which to search for rare defects. All other defects are searched for in all profiles in turn."""
