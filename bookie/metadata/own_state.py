"""Where bkheal keeps its own state: one tree, apart from Apache's, the same for every process of a cluster.

``--state-root`` moves it from ``/bkheal``, for example to the only path writable by bkheal's identity. Processes find
each other's reservations, copies under way, drains and limits there. If two processes used different roots for one
cluster, they would not see each other's records, like two unrelated programs (R90):

- With a root other than the default, the first process to change something records the root in one node next to
  Apache's tasks (``claim_state_root``). Each process reads this node when it opens the cluster, and refuses to work
  with another root.
- Such a process also refuses to work if the default root contains state about this cluster.

With the default root, nothing is recorded, and the ledgers root contains only Apache's nodes (docs/decisions/0070).

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from bookie.metadata.access import DEFAULT_STATE_ROOT, current_access
from bookie.metadata.layout import UNDERREPLICATION
from bookie.metadata.nodes import create_with_parents, reread
from bookie.metadata.port import AccessDeniedError, MetadataStore, NodeExistsError, WriteOutcomeUnknownError
from bookie.model.errors import PermanentError
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

SHARED_KINDS: Final = (
    "boosts",
    "collections",
    "copy-limits",
    "copying",
    "damage",
    "debts",
    "decisions",
    "doubts",
    "drains",
    "failures",
    "first-seen-down",
    "incarnations",
    "logs",
    "maintenance",
    "moves",
    "parked",
    "parked-bookies",
    "reservations",
    "returned",
    "standby",
    "topology",
)
"""Kinds of state used by processes to coordinate. A root with state of any of them is in use."""
PRIVATE_KINDS: Final = ("changes", "doctor", "runs")
"""Kinds also written by dry runs and ``bkheal doctor``. No process decides by them what may be changed."""
KINDS: Final = (*SHARED_KINDS, *PRIVATE_KINDS)
_SHOWN_MAX: Final = 80
_RECORD: Final = "bkheal"


class StateRootError(PermanentError):
    """This process's state root is not the cluster's, or is unusable."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """Where the state of a cluster is stored."""

    state_root: str = DEFAULT_STATE_ROOT
    moving_from: str = ""
    """The old root while the state is being moved (R98); no process may work then."""


def own_path(kind: str, ledgers_root: str) -> str:
    """Path of the state of one ``kind`` about the cluster at ``ledgers_root``, below the root of this process."""
    return state_path(current_access().state_root, kind, ledgers_root)


def state_path(state_root: str, kind: str, ledgers_root: str) -> str:
    """As ``own_path``, below any root."""
    return f"{state_root}/{kind}/{quote(ledgers_root.strip('/'), safe='')}"


def record_path(ledgers_root: str) -> str:
    """Path of the node with the cluster's state root, if it is not the default."""
    return f"{ledgers_root}/{UNDERREPLICATION}/{_RECORD}"


def check_roots_separate(ledgers_root: str) -> None:
    """Refuse a ledgers root that contains the state root of this process, or is contained in it.

    Raises:
        StateRootError: one of them contains the other.
    """
    if why := refusal(current_access().state_root, ledgers_root, None):
        raise StateRootError(why)


async def check_state_root(store: MetadataStore, ledgers_root: str, record: bytes | None) -> None:
    """Refuse to work if this process would not share the state of the cluster's other processes (R90).

    Args:
        store: of the cluster.
        ledgers_root: of the cluster.
        record: content of the node at ``record_path``; None if it does not exist.

    Raises:
        StateRootError: the cluster has another state root, or the state root and the ledgers root contain each other.
        StoreUnavailableError: no answer.
    """
    root = current_access().state_root
    if why := refusal(root, ledgers_root, record):
        raise StateRootError(why)
    if root != DEFAULT_STATE_ROOT and (why := await _default_root_evidence(store, ledgers_root)):
        raise StateRootError(
            f"bkheal's state about the cluster at {ledgers_root} is below {DEFAULT_STATE_ROOT} ({why}), and this "
            f"process was given --state-root {root}. Use {DEFAULT_STATE_ROOT}; or stop every process of bkheal and "
            f"move that state: `bkheal --state-root {DEFAULT_STATE_ROOT} cluster move-state {root}`"
        )


def refusal(state_root: str, ledgers_root: str, record: bytes | None) -> str:
    """Return why a process with ``state_root`` may not work with this cluster, by its record; empty if it may. Pure."""
    if overlaps(state_root, ledgers_root):
        return f"the state root {state_root} and the ledgers root {ledgers_root} must not contain each other"
    if record is None:
        return ""
    try:
        recorded = decode_state_record(ledgers_root, record)
    except StateRootError as error:
        return str(error)
    path, used = record_path(ledgers_root), recorded.state_root
    if recorded.moving_from:
        return (
            f"bkheal's state about the cluster at {ledgers_root} is being moved from {recorded.moving_from} to {used}, "
            f"as {path} shows. Finish that: `bkheal --state-root {recorded.moving_from} cluster move-state {used}`"
        )
    if used == state_root:
        return ""
    return (
        f"bkheal's state about the cluster at {ledgers_root} is below {used}, as {path} shows, and this process "
        f"uses {state_root}. Give all processes --state-root {used} (BKHEAL_STATE_ROOT)"
    )


def overlaps(path: str, other: str) -> bool:
    """Whether one of two paths contains the other, or they are the same."""
    return f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")


def decode_state_record(ledgers_root: str, data: bytes | None) -> StateRecord:
    """Decode the record of the cluster; None stands for the default root.

    Raises:
        StateRootError: the record is unreadable.
    """
    if data is None:
        return StateRecord()
    try:
        return decode_record(data, StateRecord, required=("state_root",))
    except UnreadableRecordError:
        path = record_path(ledgers_root)
        raise StateRootError(f"{path} does not show where bkheal's state is: {data[:_SHOWN_MAX]!r}") from None


async def claim_state_root(store: MetadataStore, ledgers_root: str) -> None:
    """Record the root of this process for all others. Call it before the first change. Idempotent.

    Nothing is written for the default root.

    Raises:
        StateRootError: another root was recorded in the meantime.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; claiming again is safe.
    """
    root = current_access().state_root
    if root == DEFAULT_STATE_ROOT:
        return
    path = record_path(ledgers_root)
    if await store.stat(path) is None:
        with contextlib.suppress(NodeExistsError, WriteOutcomeUnknownError):  # it is read below
            await create_with_parents(store, path, encode_record(StateRecord(root)), ledgers_root)
    node = await reread(store, path)
    if node is None:
        raise WriteOutcomeUnknownError(f"{path} was deleted while it was written")
    if why := refusal(root, ledgers_root, node.data):
        raise StateRootError(why)


async def _default_root_evidence(store: MetadataStore, ledgers_root: str) -> str:
    """Return evidence of this cluster's state below the default root; empty if there is none."""
    paths = [state_path(DEFAULT_STATE_ROOT, kind, ledgers_root) for kind in SHARED_KINDS]
    try:
        found = await store.get_many_data(paths)
    except AccessDeniedError as error:  # so the node exists: ZooKeeper reports a missing node as missing
        return str(error)
    return next((f"{path} exists" for path, data in zip(paths, found, strict=True) if data is not None), "")
