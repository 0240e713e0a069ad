"""Bounds of the listener on the resources held for one client, and for all clients together."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.wire.apache.framing import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """A connection beyond one of its own bounds is not read, which slows down its client."""

    connections_max: int = 1024
    """Further connections are closed at once."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Maximum size of a whole frame; a longer one closes the connection."""
    add_bytes_max: int = 16 << 20
    """Adds of one connection in the storage: their entries, and ``GROUP_OVERHEAD_BYTES`` for each group."""
    all_add_bytes_max: int = 48 << 20
    """As ``add_bytes_max``, for all connections together; a connection beyond it waits for its turn.

    Below the limit of the journal's queue (64 MiB), because that refuses requests, while here they wait.
    """
    add_wait_s: float = 10.0
    """Time from the arrival of an add for which it waits while the ledger disk is behind the journal.

    It includes the time without room. After it, the add is refused with TOO_MANY_REQUESTS.

    Apache's client treats this status as a failed bookie, so Apache's bookies wait as well. Source: the default of
    ``dbStorage_maxThrottleTimeMs`` of Apache's ``DbLedgerStorage``.
    """
    gather_s: float = 0.002
    """Longest delay of adds while the next one is incomplete; it ends early if a batch is full or others wait for room.
    Adds arriving during a commit wait for the next one. Without this delay, the first few adds of a burst would make
    the others wait for twice as long as necessary."""
    requests_max: int = 8192
    """Unanswered requests of one connection, including long polls."""
    reads_max: int = 4
    """Groups of reads of one connection in the storage; each may hold ``READ_BYTES_MAX`` in memory."""
    all_answer_bytes_max: int = 192 << 20
    """Answers of all connections: unsent entries, and ``READ_BYTES_MAX`` for each group of reads, batch read or list in
    the storage. A connection beyond it waits for its turn."""
    polls_max: int = 128
    """Waiting long polls of one connection, as many as the bookie allows in all. Further ones are answered at once, as
    a read is. Each may end with two entries in memory."""
    unsent_bytes_max: int = 1 << 20
    """Answers not fetched by a client, beyond which no more requests begin for it."""
    unfetched_s: float = 30.0
    """Time for a client to fetch that much while others wait for the room of its answers."""
    small_frame_bytes: int = 64 << 10
    """Frames up to this size are read without taking room. Beside shared room, each connection may hold one such frame
    and the last piece of the stream (256 KiB in asyncio)."""
    all_frame_bytes_max: int = 64 << 20
    """Larger frames of all connections, if incomplete or with requests not yet begun. A connection beyond it is not
    read."""
    frame_s: float = 60.0
    """Time for the arrival of such a frame while others wait for its room.

    It starts again if the connection was not read for a time.
    """
    first_request_s: float = 30.0
    """Time for a new connection to request TLS and shake hands, if TLS is mandatory."""
    silent_s: float = 600.0
    """Time for a connection to send its first request if it needs no TLS, or after the handshake.

    Apache's clients open all their connections to a bookie at the first request (16 under Pulsar), and use some much
    later.
    """
    handshake_s: float = 10.0
    """Longest duration of a TLS handshake."""
