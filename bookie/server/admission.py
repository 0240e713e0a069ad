"""Carries out the decision of ``identity``: gathers what it is made from, and writes a new bookie down."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bookie.metadata.cluster import Cluster
from bookie.metadata.cookies import (
    Cookie,
    CookieExistsError,
    CookieStore,
    InvalidCookieError,
    decode_cookie,
    encode_cookie,
    refuse_foreign,
)
from bookie.metadata.incarnations import Incarnations
from bookie.metadata.port import MetadataStore
from bookie.model.ids import BookieId, bookie_id
from bookie.runtime.clock import Clock
from bookie.server.directories import INCARNATION_FILE, VERSION_FILE, LocalDirectory, Role, look
from bookie.server.identity import Evidence, IdentityError, KnownBookie, Refusal, decide
from bookie.storage.port import Disk

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of this bookie, and the disk to reach its ``current`` with."""

    role: Role
    path: Path
    disk: Disk


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who this process is."""

    bookie_id: BookieId
    incarnation: str


async def admit(
    store: MetadataStore,
    cluster: Cluster,
    places: Sequence[Place],
    wanted_id: str,
    default_id: str,
    clock: Clock,
    rng: random.Random,
) -> Admitted:
    """Return who this process is, once that is written down in ZooKeeper and in the directories.

    Args:
        store: session with the cluster's ZooKeeper.
        cluster: cluster to join.
        places: every directory of the bookie.
        wanted_id: bookie id that was asked for; empty for none.
        default_id: bookie id where none was asked for and the directories know none.
        clock: time.
        rng: makes the UUID of a new incarnation.

    Raises:
        IdentityError: this process must not be that bookie.
        ForeignClusterError: the cluster has Apache's bookies.
        InvalidIdError: not a bookie id.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer from ZooKeeper; starting again is safe.
        DiskError: a directory cannot be read or written.
    """
    await refuse_foreign(store, cluster)
    directories = [await look(place.role, str(place.path.resolve()), place.disk) for place in places]
    bookie = bookie_id(wanted_id or _id_in(directories) or default_id)
    expected = Cookie(
        bookie,
        tuple(directory.path for directory in directories if directory.role is Role.JOURNAL),
        tuple(directory.path for directory in directories if directory.role is Role.LEDGERS),
        cluster.instance_id,
    )
    history = [incarnation.uuid for incarnation in await Incarnations(store, cluster.root).read(bookie)]
    decision = decide(Evidence(expected, await _stored_cookie(store, cluster, bookie), history, directories))
    if isinstance(decision, KnownBookie):
        return Admitted(bookie, decision.incarnation)
    incarnation = decision.incarnation or str(uuid.UUID(int=rng.getrandbits(128), version=4))
    await _write_down(store, cluster, places, expected, incarnation, clock)
    _log.info("new bookie", extra={"bookie_id": bookie, "incarnation": incarnation})
    return Admitted(bookie, incarnation)


def _id_in(directories: Sequence[LocalDirectory]) -> str | None:
    """Bookie id in the first cookie that can be read; what is wrong with the others is the decision's business."""
    for directory in directories:
        if directory.version is not None:
            try:
                return decode_cookie(directory.version).bookie_id
            except InvalidCookieError:
                continue
    return None


async def _stored_cookie(store: MetadataStore, cluster: Cluster, bookie: BookieId) -> Cookie | None:
    try:
        stored = await CookieStore(store, cluster).read(bookie)
    except InvalidCookieError as error:
        raise IdentityError(
            Refusal.DAMAGED_COOKIE,
            f"the cookie of bookie {bookie} in ZooKeeper is damaged ({error}): write the content of the file VERSION "
            "in its directories there, after checking that they belong to this bookie",
        ) from error
    return stored.cookie if stored is not None else None


async def _write_down(
    store: MetadataStore, cluster: Cluster, places: Sequence[Place], cookie: Cookie, incarnation: str, clock: Clock
) -> None:
    """Every step may find itself done already; see ``identity`` for the order."""
    for place in places:
        await place.disk.replace(INCARNATION_FILE, incarnation.encode())
    await Incarnations(store, cluster.root).record(cookie.bookie_id, incarnation, clock.epoch_ms())
    cookies = CookieStore(store, cluster)
    try:
        await cookies.create(cookie)
    except CookieExistsError as error:
        stored = await _stored_cookie(store, cluster, cookie.bookie_id)
        history = await Incarnations(store, cluster.root).read(cookie.bookie_id)
        if stored != cookie or not history or history[-1].uuid != incarnation:
            raise IdentityError(
                Refusal.EMPTY_DISKS,
                f"another bookie has just joined as {cookie.bookie_id}: give this one another bookie id",
            ) from error
    for place in places:
        await place.disk.replace(VERSION_FILE, encode_cookie(cookie))
