"""The setup of a gRPC channel to one bookie: limits, keepalive, reconnection, TLS, and the meaning of its failures."""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

from bookie.wire.port import Status
from bookie.wire.resolver import BookieAddress

MESSAGE_BYTES_MAX: Final = 12 << 20
"""Largest message, in both directions: an answer about the last add confirmed may carry two entries of 5 MiB each."""
METADATA_BYTES_MAX: Final = 8 << 10

_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    (
        "grpc.enable_retries",
        0,
    ),  # callers have their own retry rules; an add must not be sent twice
    ("grpc.enable_http_proxy", 0),  # connections between a client and its bookies never use a proxy of the environment
    ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from another transport of this process
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 4_000),  # the time one connection attempt may take: a packet or two may be lost
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a restarted bookie must be reachable within a second or two
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # also if its host has another address, as a new pod has
    ("grpc.keepalive_time_ms", 15_000),  # bookies allow 10 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

_NO_CONNECTION: Final = "failed to connect to all addresses"
"""Beginning of gRPC's text about a connection that is refused or impossible."""

_STATUS_BY_GRPC_CODE: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Status.TIMEOUT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Status.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAUTHENTICATED: Status.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: Status.UNAUTHORIZED,
    grpc.StatusCode.UNIMPLEMENTED: Status.BAD_REQUEST,
}


def open_channel(address: BookieAddress, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Return a channel that connects at its first use. None for ``credentials`` means plaintext."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    target = f"{host}:{address.port}"
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


def failure_of(error: grpc.aio.AioRpcError) -> tuple[Status, str]:
    """Return the status and text of a call that gRPC itself ended; codes without a status become UNREACHABLE."""
    code = error.code()
    return _STATUS_BY_GRPC_CODE.get(code, Status.UNREACHABLE), f"{code.name}: {reason_of(error)}"


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Return gRPC's text about a failed call; the text about a connection without its repetitions of the address."""
    text = error.details() or error.code().name
    return f"no connection: {text.rpartition(': ')[2]}" if text.startswith(_NO_CONNECTION) else text
