"""Watches bookies, their delay and the switches; the leader's watch starts an audit when a lost bookie is due.

The watch is level-triggered: each observation computes the due work from the store's content, never from a single
event. So no loss is forgotten after a change of leader, a lost session, a failed audit, or an audit that was under way
when another bookie was lost. As long as a due bookie has not been audited, another audit is started.

Every process observes the bookies, so that each can show the cluster. Only the leader writes to the store and starts
audits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from auditor.api.control import LostBookie, NotLeaderError, RunBusyError
from auditor.service.events import ServiceEvents
from auditor.service.watch.changing import RegistrationChanges
from auditor.service.watch.loss_observer import LossObserver
from auditor.service.watch.lost_bookies import ClusterObservation, LostBookiesDecision, decide, lost_without_cookie
from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown, unaudited
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.metadata.bookies.marking_policy import MarkingPolicies, MarkingRules
from bookie.metadata.bookies.rack_outage import Losses
from bookie.metadata.bookies.registration import Bookies, ObservedRegistrations, Registrations
from bookie.metadata.cluster import Cluster, NotAClusterError
from bookie.metadata.layout import disable_path, lost_bookie_delay_path
from bookie.metadata.port import MetadataStore, Stat
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ids import BookieId
from bookie.model.run import RunCause
from bookie.runtime.clock import Clock
from bookie.runtime.retry import GrowingPause
from bookie.runtime.signal import Requests
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.waiting import first_to_end

_log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 15.0
"""Time between two observations if nothing changes. Cookies are not watched, so it may take this long to notice a
decommissioned bookie."""
_RETRY_S: Final = 1.0
_REFUSED_RETRY_S_MAX: Final = 60.0
"""Longest pause after an observation that the store refused; each pause is twice the last. Only an operator can remove
the cause."""
_AUDIT_RETRY_S: Final = 30.0
"""Pause after an audit that did not cover a lost bookie; doubled each time."""
_AUDIT_RETRY_S_MAX: Final = 900.0
_OUTAGE_SESSIONS: Final = 0.5
"""Time without a connection, in session timeouts, after which bookies may have lost their sessions."""
SETTLE_SESSIONS: Final = 2.0
"""Time after an outage of the store, in session timeouts, during which no lost bookie is due: as long as a
bookie may take to notice the end of its session and to register again."""
_OWNER_MAX: Final = 200
"""Most characters of the lost bookies in the record of a run."""
_ROUNDING_S: Final = 0.002
"""Added to a due time: the clock must have passed the whole millisecond at the next observation."""


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """The cluster at the last observation."""

    writable: frozenset[BookieId] = frozenset()
    read_only: frozenset[BookieId] = frozenset()
    lost: tuple[LostBookie, ...] = ()
    held_because: str = ""
    delay_s: int = 0
    is_recovery_enabled: bool = True
    windows: Sequence[MaintenanceWindow] = ()
    """The open maintenance windows."""


@dataclass(frozen=True, slots=True)
class _Switches:
    delay_s: int
    """The last value that could be read."""
    delay_stat: Stat | None
    disable_stat: Stat | None
    problem: str = ""
    """Why the present value cannot be read; empty if it can."""


@dataclass(frozen=True, slots=True)
class WatchPorts:
    """The objects and functions that the watch uses."""

    store: MetadataStore
    cluster: Cluster
    registrations: Registrations
    tasks: UnderReplication
    down: FirstSeenDown
    clock: Clock
    is_leader: Callable[[], bool]
    start_audit: Callable[[RunCause, str], Awaitable[None]]
    """Start a bookies run. Raises RunBusyError, NotLeaderError, StoreUnavailableError."""
    wait_audit_ended: Callable[[], Awaitable[None]]
    events: ServiceEvents


class BookieWatch:
    """Watches the registrations and requests audits."""

    def __init__(
        self,
        ports: WatchPorts,
        *,
        missing_share_max: float,
        settle_s: float,
        rules: MarkingRules | None = None,
        observer: LossObserver | None = None,
    ) -> None:
        """Store the arguments; ``run`` watches.

        Args:
            ports: the objects and functions that it uses.
            missing_share_max: of the mass-loss brake, 0 to 1.
            settle_s: how long bookies may take to return after an outage of the store.
            rules: the rules that hold marks back.
            observer: measures how long other processes take to mark the ledgers of lost bookies. A follower has none,
                because its leader measures this.
        """
        self._ports = ports
        self._missing_share_max = missing_share_max
        self._policies = MarkingPolicies(ports.store, ports.cluster, ports.tasks, rules)
        self._settle_s = settle_s
        self._changing = RegistrationChanges()
        self._requests = Requests()
        self._epoch: int | None = None
        self._settle_until_s = 0.0
        """On the monotonic clock, as every wait in this process, because the system time may jump."""
        self._switches: _Switches | None = None
        self._noted: Mapping[BookieId, Down] = {}
        self._watched: ObservedRegistrations | None = None
        """The last observation as leader of registrations with a version; None: they may have changed without an
        observation."""
        self._seen: AbstractSet[BookieId] = frozenset()
        """Bookies that were registered at the last observation, and lost bookies that no audit had covered."""
        self._reopened: set[BookieId] = set()
        self._observer = observer
        self._is_audit_requested = False
        """Whether an operator asked for an audit by setting the delay to its value again."""
        self._tried: frozenset[tuple[BookieId, bool]] = frozenset()
        """The losses for which an audit was started since the last observation without a due loss."""
        self._next_try_s = 0.0
        self._retry_s = _AUDIT_RETRY_S
        self._refusals = GrowingPause(_RETRY_S, _REFUSED_RETRY_S_MAX)
        self.seen = ObservedCluster()
        self.looked_s: float | None = None
        """When ``seen`` was read, on the monotonic clock; None: not yet."""
        self.problem = ""
        """Why the watch cannot react to lost bookies until an operator changes something; empty: it can, or the store
        does not answer."""

    def request_observation(self) -> None:
        """Observe again, because of a change that the watch does not notice by itself."""
        self._requests.add()

    async def run(self) -> None:
        """Observe the bookies after each change, until cancelled."""
        watching = guarded("auditor connection", self._watch_connection())
        try:
            await self._look_and_wait()
        finally:
            await cancel(watching)

    async def _watch_connection(self) -> None:
        """Let bookies register again after an outage, even if the session of this process has survived it.

        Bookies may have returned and been lost again in the meantime, so the registrations count as unwatched.
        """
        store, clock = self._ports.store, self._ports.clock
        session, away_since_s = store.session, None
        while True:
            if not session.is_connected:
                away_since_s = clock.monotonic_s() if away_since_s is None else away_since_s
            elif away_since_s is not None:
                if clock.monotonic_s() - away_since_s >= self._settle_s / SETTLE_SESSIONS * _OUTAGE_SESSIONS:
                    self._settle()
                away_since_s, self._watched = None, None
            session = await store.wait_session_changed(session)

    def _settle(self) -> None:
        self._settle_until_s = self._ports.clock.monotonic_s() + self._settle_s

    def _settled_ms(self, now_ms: int) -> int:
        """Return the time until which bookies may register again, in epoch milliseconds; 0 if it has passed."""
        left_s = self._settle_until_s - self._ports.clock.monotonic_s()
        return now_ms + math.ceil(left_s * 1000) if left_s > 0 else 0

    async def _look_and_wait(self) -> None:
        while True:
            requests = self._requests.count
            try:
                bookies, decision = await self._observe()
                is_busy = await self._act(decision)
                self.problem = ""
                await self._wait(bookies, decision, requests, is_busy)
                self._refusals.reset()
            except (TransientError, OutcomeUnknownError, ConflictError) as error:
                _log.warning("the state of the cluster could not be read, trying again", extra={"reason": str(error)})
                await self._ports.clock.sleep(_RETRY_S)
            except PermanentError as error:
                self.problem, pause_s = str(error), self._refusals.next_pause_s()
                fields = {"reason": self.problem, "in_s": pause_s}
                _log.error("the metadata store refused to show the state of the cluster, trying again", extra=fields)
                await self._ports.clock.sleep(pause_s)

    async def _observe(self) -> tuple[Bookies, LostBookiesDecision]:
        """Read the state of the cluster, and as leader record it; return the listed bookies, and what is due.

        Raises:
            TransientError, OutcomeUnknownError, ConflictError: check again soon.
            PermanentError: the store refuses a request.
        """
        self._settle_after_outage()
        registrations = await self._registrations()
        listed = registrations.bookies
        known = await self._ports.registrations.known()
        without_cookie = await self._without_cookie(known, registrations)
        watched = known | without_cookie
        changing = self._changing.observe(watched, listed.registered, self._ports.clock.monotonic_s())
        bookies = replace(listed, read_only=listed.read_only | changing)
        switches = await self._read_switches()
        now_ms = self._ports.clock.epoch_ms()
        lost = watched - bookies.registered
        noted = await self._note(lost, bookies.registered, now_ms, switches, registrations)
        self._seen = bookies.registered | unaudited(noted)
        policy = await self._policies.read(now_ms, Losses(known, bookies.registered, noted), switches.delay_s)
        if self._ports.is_leader():
            await self._ports.down.record_holds(noted, policy.held_until_ms)
        if self._observer is not None:
            noted = self._observer.known(noted)
        observed = ClusterObservation(
            known, bookies.registered, without_cookie, noted, policy, self._settled_ms(now_ms)
        )
        decision = self._decide(observed, now_ms)
        self.seen = ObservedCluster(
            writable=bookies.writable,
            read_only=bookies.read_only,
            lost=decision.lost,
            held_because=decision.held_because,
            delay_s=switches.delay_s,
            is_recovery_enabled=switches.disable_stat is None,
            windows=policy.windows,
        )
        self.looked_s = self._ports.clock.monotonic_s()
        return listed, decision

    def _decide(self, observed: ClusterObservation, now_ms: int) -> LostBookiesDecision:
        """Decide about the lost bookies. After the brake is released, bookies get time to register again."""
        decision = decide(observed, now_ms, self._missing_share_max)
        if self.seen.held_because and not decision.held_because:
            _log.warning("the mass-loss brake is released")
            self._settle()
            observed = replace(observed, settle_until_ms=self._settled_ms(now_ms))
            decision = decide(observed, now_ms, self._missing_share_max)
        if decision.held_because and decision.held_because != self.seen.held_because:
            _log.error("the mass-loss brake holds, nothing is marked", extra={"reason": decision.held_because})
        if not decision.wanted:
            self._tried, self._retry_s = frozenset(), _AUDIT_RETRY_S
        return decision

    def _settle_after_outage(self) -> None:
        """Wait for bookies to return if this process has a new session, because the outage affected bookies as well."""
        epoch = self._ports.store.session.epoch
        if self._epoch is not None and epoch != self._epoch:
            self._settle()
            self._watched = None
        self._epoch = epoch

    async def _without_cookie(
        self, cookies: AbstractSet[BookieId], registrations: ObservedRegistrations
    ) -> AbstractSet[BookieId]:
        """Return the lost bookies whose cookie was deleted; see ``lost_without_cookie``.

        Only a leader's audits end such a loss, so an observer does not count it. A record may have disappeared although
        the registrations are the same as at the last observation. Then `bkheal decommission` removed it, which has
        proved that no ledger names the bookie.
        """
        if self._observer is not None:
            return frozenset()
        noted, registered = await self._ports.down.read(), registrations.bookies.registered
        if not self._ports.is_leader():
            return lost_without_cookie(cookies, registered, noted)
        is_unchanged = self._watched is not None and registrations.version == self._watched.version
        removed = self._noted.keys() - noted.keys() if is_unchanged else frozenset()
        return lost_without_cookie(cookies, registered, noted, self._seen - removed)

    async def _registrations(self) -> ObservedRegistrations:
        try:
            return await self._ports.registrations.observe()
        except NotAClusterError:  # the brake reports the absence of all bookies
            return ObservedRegistrations(Bookies(frozenset(), frozenset()), "- -")

    async def _read_switches(self) -> _Switches:
        store, root = self._ports.store, self._ports.cluster.root
        delay, disable = await store.get_many([lost_bookie_delay_path(root), disable_path(root)])
        before, problem = self._switches, ""
        try:
            delay_s = await self._ports.tasks.switches.lost_bookie_delay_s() if delay is not None else 0
        except InvalidDelayError as error:
            delay_s, problem = 0 if before is None else before.delay_s, str(error)
            if before is None or before.problem != problem:
                _log.error("the delay for lost bookies cannot be read", extra={"reason": problem, "used_s": delay_s})
        found = _Switches(delay_s, delay.stat if delay else None, disable.stat if disable else None, problem)
        self._switches = found
        if before is not None and _is_audit_request(before, found):
            _log.info("an audit was requested by setting the delay for lost bookies again")
            self._is_audit_requested = True
        return found

    async def _note(
        self,
        lost: AbstractSet[BookieId],
        registered: AbstractSet[BookieId],
        now_ms: int,
        switches: _Switches,
        registrations: ObservedRegistrations,
    ) -> Mapping[BookieId, Down]:
        """Return the records of the lost bookies; as leader, update them first, and log the changes."""
        if not self._ports.is_leader():
            self._noted, self._watched = {}, None
            if self._observer is not None:
                return await self._observer.observe(lost, now_ms)
            return await self._ports.down.read()
        reconciled = await self._ports.down.reconcile(lost, now_ms, registered=registered)
        noted = await self._reopen_losses_since_unwatched(dict(reconciled), registrations)
        for bookie in sorted(noted.keys() - self._noted.keys()):
            fields = {"bookie_id": bookie, "since_ms": noted[bookie].since_ms, "delay_s": switches.delay_s}
            _log.warning("bookie is lost", extra=fields)
        for bookie in sorted(self._noted.keys() - noted.keys()):
            _log.warning("bookie has returned, or is no longer known", extra={"bookie_id": bookie})
        for bookie, down in noted.items() if self._is_audit_requested else ():
            if not down.audited_ms and not down.is_delay_waived:
                await self._ports.down.waive_delay(bookie, down.since_ms)
        if self._is_audit_requested:
            noted = dict(await self._ports.down.read())
        for bookie, down in noted.items():
            earlier = self._noted.get(bookie)
            if down.audited_ms and earlier is not None and not earlier.audited_ms and bookie not in self._reopened:
                self._ports.events.loss_audited((down.audited_ms - down.since_ms) / 1000)
        self._noted = noted
        self._reopened &= noted.keys()
        return noted

    async def _reopen_losses_since_unwatched(
        self, noted: dict[BookieId, Down], registrations: ObservedRegistrations
    ) -> dict[BookieId, Down]:
        """Reopen the losses if registrations changed unseen: without a leader, or between two observations.

        A lost bookie may have returned, received new ledgers, and been lost again.
        """
        down, before = self._ports.down, self._watched
        if not registrations.version or (before is not None and registrations.version == before.version):
            return noted
        if before is None:
            is_unseen = await down.evaluated_version() != registrations.version
        else:
            is_unseen = registrations.has_unseen_changes_since(before)
        if is_unseen:
            for bookie, loss in noted.items():
                if loss.audited_ms or loss.critical_audited_ms:
                    _log.info(
                        "a lost bookie is audited again, as it was not watched for a while", extra={"bookie_id": bookie}
                    )
                    await down.reopen(bookie, loss.since_ms)
                    noted[bookie] = replace(loss, audited_ms=0, critical_audited_ms=0)
                    self._reopened.add(bookie)
        await down.record_evaluated_version(registrations.version)
        self._watched = registrations
        return noted

    async def _act(self, decision: LostBookiesDecision) -> bool:
        """Start an audit if one is due. Return True if it must wait for the end of another one."""
        is_enabled = self._switches is not None and self._switches.disable_stat is None
        if not self._ports.is_leader():
            self._is_audit_requested, self._tried = False, frozenset()
            return False
        is_due = bool(decision.wanted) and is_enabled and self._may_retry_audit(decision)
        if not is_due and not self._is_audit_requested:
            return False
        try:
            if is_due:
                lost = sorted(decision.due | decision.critical_due)
                await self._ports.start_audit(RunCause.BOOKIE_LOSS, ", ".join(lost)[:_OWNER_MAX])
            else:
                await self._ports.start_audit(RunCause.COMMAND, "lostBookieRecoveryDelay")
        except RunBusyError:
            return True
        except NotLeaderError:
            return False
        self._is_audit_requested = False
        if is_due:
            self._tried |= decision.wanted
            self._next_try_s = self._ports.clock.monotonic_s() + self._retry_s
            self._retry_s = min(self._retry_s * 2, _AUDIT_RETRY_S_MAX)
        return False

    def _may_retry_audit(self, decision: LostBookiesDecision) -> bool:
        return bool(decision.wanted - self._tried) or self._ports.clock.monotonic_s() >= self._next_try_s

    async def _wait(self, bookies: Bookies, decision: LostBookiesDecision, requests: int, is_busy: bool) -> None:
        """Wait for any change, or for the end of the next delay."""
        store, root = self._ports.store, self._ports.cluster.root
        switches = self._switches
        assert switches is not None
        works = [
            self._changed(bookies),
            store.wait_node_changed(lost_bookie_delay_path(root), switches.delay_stat),
            store.wait_node_changed(disable_path(root), switches.disable_stat),
            self._requests.since(requests),
        ]
        if is_busy:
            works.append(_of(self._ports.wait_audit_ended()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s(decision)):
                await first_to_end(*works)

    def _wait_s(self, decision: LostBookiesDecision) -> float:
        clock = self._ports.clock
        changing_s = self._changing.left_s(clock.monotonic_s())
        left_s = [] if changing_s is None else [changing_s]
        left_s += [] if decision.next_check_ms is None else [(decision.next_check_ms - clock.epoch_ms()) / 1000]
        if decision.wanted and not decision.wanted - self._tried:
            left_s.append(self._next_try_s - clock.monotonic_s())
        soonest_s = min((left for left in left_s if left > 0), default=CHECK_INTERVAL_S)
        return min(CHECK_INTERVAL_S, soonest_s + _ROUNDING_S)

    async def _changed(self, bookies: Bookies) -> None:
        try:
            await self._ports.registrations.wait_changed(bookies)
        except NotAClusterError:
            await self._ports.clock.sleep(CHECK_INTERVAL_S)


def _is_audit_request(before: _Switches, now: _Switches) -> bool:
    """Whether the delay was set to its old value: the way to request an audit from Apache's auditor."""
    if before.delay_stat is None or now.delay_stat is None or before.delay_s != now.delay_s:
        return False
    if before.problem or now.problem:
        return False
    return before.delay_stat.mzxid != now.delay_stat.mzxid


async def _of(awaitable: Awaitable[None]) -> None:
    await awaitable
