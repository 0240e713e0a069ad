"""Names of znodes and pure path arithmetic. Nothing here accesses a store.

Source: docs/formats.md#cluster-root, #ledger-paths, #task-paths.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import Final

from bookie.model.ids import LEDGER_ID_MAX, BookieId, LedgerId

LAYOUT: Final = "LAYOUT"
INSTANCE_ID: Final = "INSTANCEID"
AVAILABLE: Final = "available"
READ_ONLY: Final = "readonly"
COOKIES: Final = "cookies"
IDGEN: Final = "idgen"
IDGEN_LONG: Final = "idgen-long"
UNDERREPLICATION: Final = "underreplication"

SHORT_ID_END: Final = 2147483647
"""First id in the long tree of the default layout, and first one refused by the short generator.

Source: docs/formats.md#ledger-paths.
"""

_FACTORY_PACKAGE: Final = "org.apache.bookkeeper.meta."
_SHORT_TOP_PATTERN: Final = re.compile(r"[0-9]{2}")
_LONG_TOP_PATTERN: Final = re.compile(r"[0-9]{3}")
_INNER_PATTERN: Final = re.compile(r"[0-9]{4}")
_LEAF: Final = re.compile(r"L[0-9]{4}")
_FLAT_LEAF_PATTERN: Final = re.compile(r"L(?:[0-9]{10}|[1-9][0-9]{10,18})")
_TASK_LEVEL: Final = re.compile(r"[0-9a-f]{4}")
_TASK: Final = re.compile(r"urL([0-9]{10,19})")


class LayoutKind(enum.Enum):
    """How ledger ids become paths; the values are the layout words of a metadata service URI."""

    HIERARCHICAL = "hierarchical"
    """Ids below 2147483647 as 2-4-4 digits, the others as 3-4-4-4-4; the default of new clusters."""
    LONG_HIERARCHICAL = "longhierarchical"
    FLAT = "flat"
    """Deprecated by Apache; existing ledgers are served, new ones are not created."""

    @property
    def factory(self) -> str:
        """Class name in the LAYOUT node."""
        return _FACTORY_PACKAGE + _FACTORIES[self]


_FACTORIES: Final = {
    LayoutKind.HIERARCHICAL: "HierarchicalLedgerManagerFactory",
    LayoutKind.LONG_HIERARCHICAL: "LongHierarchicalLedgerManagerFactory",
    LayoutKind.FLAT: "FlatLedgerManagerFactory",
}


def ledger_path(kind: LayoutKind, root: str, ledger_id: int) -> str:
    """Path of a ledger's metadata node."""
    if kind is LayoutKind.FLAT:
        return f"{root}/L{ledger_id:010d}"
    if kind is LayoutKind.HIERARCHICAL and ledger_id < SHORT_ID_END:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of(kind: LayoutKind, root: str, path: str) -> LedgerId | None:
    """Ledger id of a path below ``root``, or None if it is not the path of a ledger."""
    parent, _, name = path.rpartition("/")
    ids = ledger_ids_under(kind, root, parent, (name,))
    return ids[0] if ids else None


def ledger_ids_under(kind: LayoutKind, root: str, parent: str, names: Sequence[str]) -> list[LedgerId]:
    """Return ids of the ledgers among the children ``names`` of ``parent``, ascending. Other names are skipped.

    So are ids with another path in this layout: no client would find such a ledger by its id.
    """
    if kind is LayoutKind.FLAT:
        is_short, base, pattern = True, 0 if parent == root else None, _FLAT_LEAF_PATTERN
    else:
        is_short, base = _leaf_base(kind, root, parent)
        pattern = _LEAF
    if base is None:
        return []
    ids = sorted(base + int(name[1:]) for name in names if pattern.fullmatch(name))
    if kind is LayoutKind.HIERARCHICAL:
        ids = [value for value in ids if (value < SHORT_ID_END) == is_short]
    return [LedgerId(value) for value in ids if value <= LEDGER_ID_MAX]


def _leaf_base(kind: LayoutKind, root: str, parent: str) -> tuple[bool, int | None]:
    """Whether a parent of ledgers is in the short tree, and the id of its ledger ``L0000``; None for other paths."""
    top, *inner = parent[len(root) + 1 :].split("/") if parent.startswith(root + "/") else [""]
    is_short = kind is LayoutKind.HIERARCHICAL and bool(_SHORT_TOP_PATTERN.fullmatch(top))
    is_top = is_short or bool(_LONG_TOP_PATTERN.fullmatch(top))
    if not is_top or len(inner) != (1 if is_short else 3) or not all(map(_INNER_PATTERN.fullmatch, inner)):
        return is_short, None
    return is_short, int(top + "".join(inner)) * 10_000


def top_names(kind: LayoutKind, names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Names at the top of the short and of the long tree among the root's children, each sorted."""
    short = (
        sorted(name for name in names if _SHORT_TOP_PATTERN.fullmatch(name)) if kind is LayoutKind.HIERARCHICAL else []
    )
    long = sorted(name for name in names if _LONG_TOP_PATTERN.fullmatch(name)) if kind is not LayoutKind.FLAT else []
    return short, long


def inner_names(names: tuple[str, ...]) -> list[str]:
    """Names of the ledger tree's inner nodes among ``names``, sorted."""
    return sorted(name for name in names if _INNER_PATTERN.fullmatch(name))


def task_level_names(names: Sequence[str]) -> list[str]:
    """Names of the task tree's inner nodes among ``names``, sorted."""
    return sorted(name for name in names if _TASK_LEVEL.fullmatch(name))


def parents_of(path: str, root: str) -> list[str]:
    """Ancestors of ``path`` below ``root`` (exclusive), the nearest first: the order of pruning."""
    parents = []
    parent = path.rpartition("/")[0]
    while len(parent) > len(root):
        parents.append(parent)
        parent = parent.rpartition("/")[0]
    return parents


def bookie_path(root: str, bookie: BookieId, *, is_read_only: bool) -> str:
    """Path of a bookie's registration."""
    return f"{available_path(root, is_read_only=is_read_only)}/{bookie}"


def available_path(root: str, *, is_read_only: bool) -> str:
    """Parent of the writable or of the read-only registrations."""
    return f"{root}/{AVAILABLE}/{READ_ONLY}" if is_read_only else f"{root}/{AVAILABLE}"


def cookie_path(root: str, bookie: BookieId) -> str:
    """Path of a bookie's cookie."""
    return f"{root}/{COOKIES}/{bookie}"


def disable_path(root: str) -> str:
    """Node whose presence disables auto-recovery cluster-wide."""
    return f"{root}/{UNDERREPLICATION}/disable"


def lost_bookie_delay_path(root: str) -> str:
    """Node with the seconds to wait before a lost bookie's ledgers are marked."""
    return f"{root}/{UNDERREPLICATION}/lostBookieRecoveryDelay"


def tasks_path(root: str) -> str:
    """Root of the tree of under-replication tasks."""
    return f"{root}/{UNDERREPLICATION}/ledgers"


def task_path(root: str, ledger_id: int) -> str:
    """Path of a ledger's under-replication task (docs/formats.md#task-paths)."""
    return f"{task_directory(root, ledger_id)}/{task_name(ledger_id)}"


def task_directory(root: str, ledger_id: int) -> str:
    """Parent of a ledger's under-replication task, and of no other task."""
    digits = f"{ledger_id:016x}"
    return f"{tasks_path(root)}/{digits[:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:]}"


def task_branches(root: str, ledger_ids: Iterable[int]) -> list[str]:
    """Parents of these ledgers' task directories, without duplicates, ascending; each parent serves 65,536 ledgers."""
    firsts = sorted({ledger_id & ~0xFFFF for ledger_id in ledger_ids})
    return [task_directory(root, first).rpartition("/")[0] for first in firsts]


def locks_path(root: str) -> str:
    """Parent of all under-replication locks."""
    return f"{root}/{UNDERREPLICATION}/locks"


def lock_path(root: str, ledger_id: int) -> str:
    """Path of a ledger's under-replication lock."""
    return f"{locks_path(root)}/{task_name(ledger_id)}"


def task_name(ledger_id: int) -> str:
    """Common name of a ledger's task and lock."""
    return f"urL{ledger_id:010d}"


def task_ledger_id(name: str) -> LedgerId | None:
    """Ledger id of a task's or lock's name, or None for any other name."""
    match = _TASK.fullmatch(name)
    return _id(match.group(1)) if match else None


def _id(digits: str) -> LedgerId | None:
    value = int(digits)
    return LedgerId(value) if value <= LEDGER_ID_MAX else None
