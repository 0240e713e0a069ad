"""The election of the leading auditor, common to Apache's auditors and bkheal's (docs/formats.md#election).

The invariant: at most one auditor leads at a time (A1), and a stalled process stops leading before another one begins
(A2). A vote is an ephemeral sequential node, and the lowest number leads, whichever kind of auditor cast it. Auditors
of Pulsar's driver elect their leader by another node, so the candidate with the lowest vote leads only while it holds
this node as well (R87, ``pulsar_leader``). Votes come first: only the candidate with the lowest vote takes the node, so
bkheal's candidates never block each other. During a migration of the metadata, no candidate votes (R88).

A leadership is bounded twice: by the session, because the vote ends with it (S14), and by the candidate's own clock. It
lasts only while the last confirmation of the vote is more recent than ``FRESH_SHARE`` of the session timeout. The time
is taken before the request, which is a ``sync`` and then a read. So the ZooKeeper leader has seen the session alive
after that time, and expires it about a whole timeout later at the earliest. A stopped process, or one with a hanging
event loop, thus loses its leadership before the server can give it to another one. ``is_leader`` checks both bounds at
each call.

Before it casts a vote, a candidate looks for votes of its session, because an earlier answer may have been lost, and
deletes all but the lowest. After a crash the vote ends with the session, and the next candidate leads. A resigning
candidate first ends its leadership and then deletes the vote.

Not covered: a machine whose monotonic clock stands still (a suspended virtual machine). There the end of the session,
and the leader's compare-and-set writes, must suffice.

A and S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from dataclasses import dataclass
from typing import Final

from bookie.metadata.layout import UNDERREPLICATION
from bookie.metadata.migration import Migration, migration_path, read_migration
from bookie.metadata.nodes import ensure_path
from bookie.metadata.port import (
    ANY_VERSION,
    AccessDeniedError,
    Children,
    Delete,
    MetadataStore,
    MultiFailedError,
    Node,
    NoNodeError,
    Session,
    SessionState,
    Stat,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.proto.metadata_formats_pb2 import AuditorVoteFormat
from bookie.metadata.proto.text import UnreadableTextError, parse_text, quoted
from bookie.metadata.runs.pulsar_leader import LeaderNode, LeaderNodeHolder, leader_name, leader_path
from bookie.model.errors import ConflictError, PermanentError
from bookie.runtime.clock import Clock
from bookie.runtime.retry import GrowingPause
from bookie.runtime.signal import Signal, waiting_for
from bookie.runtime.waiting import first_to_end

_log = logging.getLogger(__name__)

FRESH_SHARE: Final = 0.6
"""Share of the session timeout. ZooKeeper ends a session at the earliest a whole timeout after its last answered
``sync``, less half a tick, the interval at which servers report live sessions. The rest of the timeout covers this, and
work begun while the confirmation was recent."""
_CONFIRM_SHARE: Final = 0.15
"""Interval between confirmations, as a share of the session timeout: a confirmation is valid for four intervals."""
_RETRY_S: Final = 1.0
"""Pause after an attempt that failed because of the store or another candidate. A new session has no pause."""
_REFUSED_RETRY_S_MAX: Final = 60.0
"""Longest pause after attempts that the store refused. The pause doubles each time: only a person can remove the
cause."""
CANDIDATES_MAX: Final = 10
"""Maximum number of candidates to read. A service has two or three auditors, and Apache has one per pod."""
_LISTINGS_MAX: Final = 5
_VOTE: Final = re.compile(r"V_(-?[0-9]{1,11})")


@dataclass(frozen=True, slots=True)
class Leadership:
    """A candidate's view of the election. ``term`` grows with each win, which distinguishes two terms."""

    is_leader: bool = False
    term: int = 0
    leader: str = ""
    """Name of the leader, of any kind, when last read; empty if there was none, or it is unknown."""


@dataclass(frozen=True, slots=True)
class _Vote:
    path: str
    czxid: int
    session: Session


class Election:
    """One candidate. ``run`` does everything; the rest may be called at any time, ``is_leader`` from any thread."""

    def __init__(
        self, store: MetadataStore, ledgers_root: str, name: str, clock: Clock, *, session_timeout_s: float
    ) -> None:
        self._store = store
        self._root = ledgers_root
        self._base = election_path(ledgers_root)
        self._name = name
        self._clock = clock
        self._requested_s = session_timeout_s
        self._state = Leadership()
        self._changed = Signal()
        self._vote: _Vote | None = None
        self._leader_node = LeaderNode(store, ledgers_root, name)
        self._held: Stat | None = None
        """Stat of the node of Pulsar's election, while this session owns it."""
        self._migration: Migration | None = None
        self._confirmed_s = float("-inf")
        self._refusals = GrowingPause(_RETRY_S, _REFUSED_RETRY_S_MAX)
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why this candidate cannot even vote until a person intervenes; empty if no reason is known."""
        return self._problem

    @property
    def state(self) -> Leadership:
        """The current view of the election. Its ``is_leader`` may be older than the method of the same name."""
        return self._state

    def is_leader(self, term: int | None = None) -> bool:
        """Return whether this process may act as the auditor at this moment (and still in ``term``, if given)."""
        state, vote, session = self._state, self._vote, self._store.session
        if vote is None or not state.is_leader or (term is not None and term != state.term):
            return False
        is_same_session = session.epoch == vote.session.epoch and session.state is not SessionState.LOST
        return is_same_session and self._clock.monotonic_s() - self._confirmed_s < self._fresh_s

    @property
    def _timeout_s(self) -> float:
        """Timeout of the current session: the server may have granted less than requested."""
        return min(self._requested_s, self._store.session.timeout_s)

    @property
    def _fresh_s(self) -> float:
        return self._timeout_s * FRESH_SHARE

    async def wait_changed(self, seen: Leadership) -> Leadership:
        """Return the state once it differs from ``seen``. Changes in quick succession may be reported as one."""
        while self._state == seen:
            with waiting_for(self._changed) as waiter:
                await waiter
        return self._state

    async def run(self) -> None:
        """Stand for election, lead, and stand again, in this and each later session, until cancelled.

        Cancelling does not resign: call ``resign`` afterwards.
        """
        try:
            while True:
                session = self._store.session
                if not session.is_connected:
                    await self._store.wait_session_changed(session)
                    continue
                pause_s = _RETRY_S
                try:
                    await self._hold_candidacy(session)
                except (StoreUnavailableError, WriteOutcomeUnknownError, ConflictError) as error:
                    _log.warning("election is tried again", extra={"candidate": self._name, "reason": str(error)})
                except PermanentError as error:
                    pause_s, self._problem = self._refusals.next_pause_s(), str(error)
                    fields = {"candidate": self._name, "reason": self._problem, "in_s": pause_s}
                    _log.error("this auditor may not stand for election, trying again", extra=fields)
                self._end("the vote or its session no longer exists")
                if self._store.session == session:
                    await self._pause(session, pause_s)
        finally:
            self._end("the candidate stopped")

    async def resign(self) -> None:
        """Withdraw the vote, so another auditor takes over at once. Idempotent; call it after ``run`` has ended.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the vote ends with the session.
        """
        self._end("it resigned")
        await self._withdraw()

    async def _withdraw(self) -> None:
        """Delete the vote, and the node of Pulsar's election if this session holds it."""
        vote, self._vote = self._vote, None
        held, self._held = self._held, None
        if vote is None or not self._is_session(vote.session):
            return
        if held is not None:
            # While the own vote exists, no other bkheal candidate may hold the node.
            with contextlib.suppress(MultiFailedError):
                await self._store.multi([Delete(vote.path), self._leader_node.deletion(held)])
                return
        with contextlib.suppress(NoNodeError):
            await self._store.delete(vote.path)

    async def _hold_candidacy(self, session: Session) -> None:
        """Stand until the vote is deleted, the session changes, or a migration begins."""
        migration = self._migration = await read_migration(self._store, self._root)
        if migration.refusal:
            await self._withdraw_for_migration(session, migration)
            return
        await ensure_path(self._store, self._base, self._root)
        vote = self._vote = await self._cast_vote(session)
        self._problem = ""
        self._refusals.reset()
        while self._is_session(session):
            votes = await self._votes()
            own = vote.path.rpartition("/")[2]
            names = _ordered(votes)
            if own not in names:
                _log.warning("own vote no longer exists, casting another", extra={"candidate": self._name})
                return
            holder = await self._follow_or_take(session, names[0], own)
            if holder is not None and names[0] == own and holder.is_own:
                await self._lead(vote, holder)
                return
            await first_to_end(
                self._store.wait_children_changed(self._base, votes),
                self._store.wait_node_changed(self._leader_node.path, holder.stat if holder else None),
                self._store.wait_node_changed(migration_path(self._root), migration.stat),
            )
            if await self._has_migration_changed():
                return

    async def _withdraw_for_migration(self, session: Session, migration: Migration) -> None:
        """Withdraw, and wait for the next phase of a migration."""
        self._problem = migration.refusal
        _log.error(
            "this auditor withdraws from the election", extra={"candidate": self._name, "reason": migration.refusal}
        )
        self._end(migration.refusal)
        self._become(Leadership(False, self._state.term, ""))
        await self._withdraw()
        await self._leader_node.leave(session)
        await self._store.wait_node_changed(migration_path(self._root), migration.stat)

    async def _follow_or_take(self, session: Session, first: str, own: str) -> LeaderNodeHolder | None:
        """Take Pulsar's node if the own vote is the lowest, else record the leader; return the holder of the node."""
        if first == own:
            holder = await self._leader_node.take(session)
            if not holder.is_own:
                self._become(Leadership(False, self._state.term, holder.name))
            return holder
        await self._leader_node.leave(session)  # taken with an earlier vote of this session
        self._held = None
        await self._note_leader(first)
        return await self._leader_node.holder(session)

    async def _has_migration_changed(self) -> bool:
        stat = await self._store.stat(migration_path(self._root))
        seen = None if self._migration is None else self._migration.stat
        return (stat and stat.mzxid) != (seen and seen.mzxid)

    async def _cast_vote(self, session: Session) -> _Vote:
        """Return the vote of this session, cast now or by an earlier attempt whose answer was lost."""
        found = await self._own_votes(session)
        if not found:
            try:
                await self._store.create(
                    f"{self._base}/V_", encode_vote(self._name), is_ephemeral=True, is_sequential=True
                )
            except WriteOutcomeUnknownError:
                _log.info("answer to a vote was lost, confirming for it", extra={"candidate": self._name})
            found = await self._own_votes(session)
        if not found:
            raise StoreUnavailableError(f"no vote in {self._base}: it was not cast, or no longer exists")
        for extra in found[1:]:
            with contextlib.suppress(NoNodeError):
                await self._store.delete(extra.path)
        return found[0]

    async def _own_votes(self, session: Session) -> list[_Vote]:
        await self._store.sync(self._base)
        paths = [f"{self._base}/{name}" for name in _ordered(await self._votes())]
        nodes = await self._store.get_many(paths)
        return [
            _Vote(path, node.stat.czxid, session)
            for path, node in zip(paths, nodes, strict=True)
            if node is not None and node.stat.ephemeral_owner == session.session_id
        ]

    async def _lead(self, vote: _Vote, holder: LeaderNodeHolder) -> None:
        """Lead until the vote or Pulsar's node is deleted, a migration begins, or the session changes.

        Until then, the leadership ends if a confirmation is overdue, and begins again after the next one.
        """
        self._held = holder.stat
        if not await self._confirm(vote, self._clock.monotonic_s()):
            return
        with contextlib.suppress(
            StoreUnavailableError, WriteOutcomeUnknownError, AccessDeniedError
        ):  # only people read it
            await self._store.set(self._base, encode_vote(self._name), ANY_VERSION)
        pause_s = self._timeout_s * _CONFIRM_SHARE
        while self._is_session(vote.session):
            await self._pause_while_held(vote.session, pause_s)
            confirmed_s, pause_s = self._confirmed_s, self._timeout_s * _CONFIRM_SHARE
            if not await self._confirm_in_time(vote):
                return
            if self._confirmed_s != confirmed_s:  # after a slow answer, the vote may be stale before the usual interval
                pause_s = max(0.0, self._confirmed_s + pause_s - self._clock.monotonic_s())

    async def _confirm_in_time(self, vote: _Vote) -> bool:
        """Confirm the vote; False if it was deleted. If no answer comes in time, leadership ends and the vote stays."""
        asked_s = self._clock.monotonic_s()
        stale_in_s = max(0.0, self._confirmed_s + self._fresh_s - asked_s)
        confirming = asyncio.ensure_future(self._confirm(vote, asked_s))
        try:
            if not self.is_leader():
                self._end("it was not confirmed in time")
            done, _ = await asyncio.wait([confirming], timeout=stale_in_s)
            if not done:
                self._end("it was not confirmed in time")
            return await confirming
        except StoreUnavailableError:
            if not self.is_leader():
                self._end("it was not confirmed in time")
            return self._is_session(vote.session)
        finally:
            confirming.cancel()

    async def _confirm(self, vote: _Vote, asked_s: float) -> bool:
        """Confirm the own vote and Pulsar's node, and lead from then on; ``asked_s`` is the time before the request.

        The ``sync`` makes the server contact the ZooKeeper leader. A server that has lost its leader would answer reads
        for a while, although the leader may have expired the session and another auditor may lead.
        """
        await self._store.sync(vote.path)
        stat = await self._store.stat(vote.path)
        if stat is None or stat.czxid != vote.czxid or not self._is_session(vote.session):
            return False
        held = await self._store.stat(self._leader_node.path)
        if self._held is None or held is None or held.czxid != self._held.czxid or await self._has_migration_changed():
            return False
        self._held = held
        self._confirmed_s = asked_s
        if not self._state.is_leader and self._clock.monotonic_s() - asked_s < self._fresh_s:
            _log.warning("this auditor leads", extra={"auditor": self._name, "vote": vote.path})
            self._become(Leadership(True, self._state.term + 1, self._name))
        return True

    async def _pause(self, session: Session, seconds: float) -> None:
        """Wait, or return as soon as the session changes."""
        if self._store.session != session:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._store.wait_session_changed(session)

    async def _pause_while_held(self, session: Session, seconds: float) -> None:
        """As ``_pause``; also return as soon as Pulsar's node or the migration changes."""
        held, migration = self._held, self._migration
        if held is None or migration is None or self._store.session != session:
            await self._pause(session, seconds)
            return
        with contextlib.suppress(TimeoutError, StoreUnavailableError):
            async with asyncio.timeout(seconds):
                await first_to_end(
                    self._pause(session, seconds),
                    self._store.wait_node_changed(self._leader_node.path, held),
                    self._store.wait_node_changed(migration_path(self._root), migration.stat),
                )

    async def _note_leader(self, name: str) -> None:
        vote, node = await self._store.get_many([f"{self._base}/{name}", self._leader_node.path])
        if vote is not None:
            self._become(Leadership(False, self._state.term, _leader_in(vote, node)))

    async def _votes(self) -> Children:
        return await self._store.children(self._base)

    def _is_session(self, session: Session) -> bool:
        now = self._store.session
        return now.epoch == session.epoch and now.state is not SessionState.LOST

    def _end(self, why: str) -> None:
        if self._state.is_leader:
            _log.warning("this auditor no longer leads", extra={"auditor": self._name, "reason": why})
        self._become(Leadership(False, self._state.term, "" if self._state.is_leader else self._state.leader))

    def _become(self, state: Leadership) -> None:
        if state != self._state:
            self._state = state
            self._changed.fire()


async def current_auditor(store: MetadataStore, ledgers_root: str) -> str:
    """Name of the leading auditor: bkheal's, Apache's, or one of Pulsar's driver; empty without one.

    Raises:
        StoreUnavailableError: no answer.
    """
    base = election_path(ledgers_root)
    for _ in range(_LISTINGS_MAX):
        try:
            names = _ordered(await store.children(base))
        except NoNodeError:
            names = []
        paths = [leader_path(ledgers_root), *(f"{base}/{name}" for name in names[:1])]
        node, *votes = await store.get_many(paths)
        if not names or votes[0] is not None:
            return _leader_in(votes[0] if votes else None, node)
    return ""


async def candidates(store: MetadataStore, ledgers_root: str) -> list[str]:
    """Names in the first ``CANDIDATES_MAX`` votes, the leader's first; vanishing votes are left out.

    Raises:
        StoreUnavailableError: no answer.
    """
    base = election_path(ledgers_root)
    try:
        names = _ordered(await store.children(base))[:CANDIDATES_MAX]
    except NoNodeError:
        return []
    return [decode_vote(data) for data in await store.get_many_data([f"{base}/{name}" for name in names]) if data]


def _leader_in(vote: Node | None, node: Node | None) -> str:
    """Return the leader's name. The lowest vote leads, unless another session holds Pulsar's node."""
    if node is not None and (vote is None or vote.stat.ephemeral_owner != node.stat.ephemeral_owner):
        return leader_name(node)
    return "" if vote is None else decode_vote(vote.data)


def election_path(ledgers_root: str) -> str:
    """Parent of the votes."""
    return f"{ledgers_root}/{UNDERREPLICATION}/auditorelection"


def encode_vote(name: str) -> bytes:
    """Bytes of a vote, and of the election's root after the vote has won."""
    return f"bookieId: {quoted(name)}\n".encode()


def decode_vote(data: bytes) -> str:
    """Return the name in a vote; empty if it is missing or unreadable, because only people read it."""
    message = AuditorVoteFormat()
    try:
        parse_text(data, message)
    except UnreadableTextError:
        return ""
    return message.bookieId


def _ordered(votes: Children) -> list[str]:
    """Return the names of votes, the leading one first; other names are ignored."""
    numbered = [(int(match[1]), name) for name in votes.names if (match := _VOTE.fullmatch(name))]
    return [name for _, name in sorted(numbered)]
