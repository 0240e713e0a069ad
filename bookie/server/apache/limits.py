"""Bounds of the listener: what one client, and all of them together, can make a bookie hold."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.wire.apache.framing import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Beyond those of one connection it is not read, which holds its client back."""

    connections_max: int = 1024
    """One more is closed at once."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Of a whole frame; a longer one closes the connection."""
    add_bytes_max: int = 16 << 20
    """Entries of one connection with the storage."""
    all_add_bytes_max: int = 48 << 20
    """Entries of all connections with the storage; a connection beyond it waits for its turn.

    Below the limit of the journal's queue (64 MiB), which would refuse; here requests wait.
    """
    gather_s: float = 0.002
    """How long adds may be held back while the next one has come in part: no longer than until a batch is full, nor
    while others wait for room. What arrives during a commit waits for the next one, so without this the first few adds
    of a burst keep the others waiting for twice as long as they need."""
    requests_max: int = 8192
    """Requests of one connection that are not answered, long polls among them."""
    reads_max: int = 4
    """Groups of reads of one connection with the storage; each may hold ``READ_BYTES_MAX`` in memory."""
    all_answer_bytes_max: int = 192 << 20
    """Of all connections: entries that were read and have not left, and ``READ_BYTES_MAX`` for each group of reads,
    batch read or list with the storage; a connection beyond it waits for its turn."""
    polls_max: int = 128
    """Long polls of one connection that wait, as many as the bookie lets wait in all; one more is answered at once, as
    a read is. Each may end with two entries in memory."""
    unsent_bytes_max: int = 1 << 20
    """Answers that a client does not fetch, before nothing more is begun for it."""
    unfetched_s: float = 30.0
    """How long a client may take to fetch that much while others wait for the room that its answers take."""
    small_frame_bytes: int = 64 << 10
    """Frames up to this size are read without further ado; with the piece of the stream that was read last (256 KiB in
    asyncio), this is what each connection may hold beside what all of them share."""
    all_frame_bytes_max: int = 64 << 20
    """Larger frames, of all connections, that have not come wholly, or whose requests wait to be begun; a connection
    beyond it is not read on."""
    frame_s: float = 60.0
    """How long such a frame may take to come while others wait for the room that it takes.

    Starts again if the connection was not read for a time.
    """
    first_request_s: float = 30.0
    """The time within which a new connection must ask for TLS, if it has to, and shake hands."""
    silent_s: float = 600.0
    """The time within which an unrestricted connection must send anything.

    Apache's clients open all their connections to a bookie at the first request (16 under Pulsar), and use some much
    later.
    """
    handshake_s: float = 10.0
    """How long a TLS handshake may take."""
