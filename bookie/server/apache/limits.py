"""The bounds of a listener on the resources for one client, and for all clients together."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.wire.apache.framing import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The bounds of a listener. A connection over one of its own bounds is not read, so its client slows down."""

    connections_max: int = 1024
    """The most connections. A further one replaces the oldest one without a request; if there is none, it is closed."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Maximum size of a whole frame; a longer one closes the connection."""
    add_bytes_max: int = 16 << 20
    """Bytes of one connection's adds in the storage: their entries, and ``GROUP_OVERHEAD_BYTES`` for each group."""
    all_add_bytes_max: int = 48 << 20
    """The same for all connections together. A connection that would exceed it waits for its turn.

    It is smaller than the limit of the journal's queue (64 MiB), because that queue refuses requests, while they wait
    here.
    """
    add_wait_s: float = 10.0
    """Longest wait of an add, from its arrival, while the ledger disk is behind the journal.

    It includes the wait for room. After it, the add is refused with TOO_MANY_REQUESTS.

    Apache's client treats this status as a failed bookie, so Apache's bookies wait as well. Source: the default of
    ``dbStorage_maxThrottleTimeMs`` of Apache's ``DbLedgerStorage``.
    """
    gather_s: float = 0.002
    """Longest delay of adds while the next add is incomplete. It ends early if a batch is full or other connections
    wait for room. Adds that arrive during a commit wait for the next commit. So without this delay, the first few adds
    of a burst would make the others wait for twice as long as necessary."""
    requests_max: int = 8192
    """The most unanswered requests of one connection, including long polls."""
    reads_max: int = 4
    """The most groups of reads of one connection in the storage. Each may hold ``READ_BYTES_MAX`` in memory."""
    waiting_bytes_max: int = 1 << 20
    """Memory of one connection's waiting requests other than adds, above which it is not read. This is five thousand
    reads: the adds and fences of a client that reads much must not wait until most of its reads are answered."""
    all_waiting_bytes_max: int = 64 << 20
    """The same for all connections together. Above it, a connection with any such request is not read."""
    all_answer_bytes_max: int = 192 << 20
    """Bytes of the answers of all connections: unsent entries, and ``READ_BYTES_MAX`` for each group of reads, batch
    read or list in the storage. A connection that would exceed it waits for its turn."""
    polls_max: int = 128
    """The most waiting long polls of one connection: as many as the bookie allows in total. Further ones are answered
    at once, like a read. Each may end with two entries in memory."""
    unsent_bytes_max: int = 1 << 20
    """Bytes of answers that a client has not received, beyond which no more requests begin for it."""
    all_unsent_bytes_max: int = 64 << 20
    """Bytes of unsent answers without room, such as those to adds, of all connections. Above it, the next bound
    replaces ``unsent_bytes_max``, so clients that receive nothing do not fill the memory, and others are served."""
    crowded_unsent_bytes_max: int = 64 << 10
    unfetched_s: float = 30.0
    """Time within which a client must receive that much while other connections wait for the room of its answers."""
    small_frame_bytes: int = 64 << 10
    """Frames up to this size are read without taking room. In addition to shared room, each connection may hold one
    such frame and the last piece of the stream (256 KiB in asyncio)."""
    all_frame_bytes_max: int = 64 << 20
    """Bytes of the larger frames of all connections that are incomplete or have requests that have not begun. A
    connection that would exceed it is not read."""
    frame_s: float = 60.0
    """Time within which such a frame must arrive while other connections wait for its room.

    It restarts after a time in which the connection was not read.
    """
    first_request_s: float = 30.0
    """Time within which a new connection must request TLS and complete the handshake, if TLS is mandatory."""
    silent_s: float = 600.0
    """Time within which a connection must send its first request, if it needs no TLS or after the handshake.

    Apache's clients open all their connections to a bookie at the first request (16 with Pulsar), and use some of them
    much later.
    """
    handshake_s: float = 10.0
    """Longest duration of a TLS handshake."""
