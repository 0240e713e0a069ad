"""The content of a bookie's registration: BookieServiceInfoFormat (docs/formats.md#registration)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from bookie.metadata.proto.metadata_formats_pb2 import BookieServiceInfoFormat
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId

PROTOCOL_GRPC: Final = "bookie-grpc"
PROTOCOL_APACHE: Final = "bookie-rpc"
PROTOCOL_HTTP: Final = "http"
_KNOWN_MAX: Final = 1024
"""Maximum number of decoded registrations in the cache: a worker reads those of its targets again for each ledger."""
PROPERTY_INCARNATION: Final = "bkheal.incarnation"
PROPERTY_CAN_COPY: Final = "bkheal.copy"
"""Its value is "true" if the bookie copies entries from other bookies on request."""


class UnreadableServiceInfoError(PermanentError):
    """Invalid service info, or an empty payload of a bookie whose id is not ``host:port``."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address at which a bookie answers."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """Everything in a bookie's registration."""

    endpoints: tuple[Endpoint, ...]
    properties: tuple[tuple[str, str], ...] = ()
    """Sorted by name when read."""

    @property
    def incarnation(self) -> str:
        """UUID of the storage incarnation; empty if the registration has none."""
        return dict(self.properties).get(PROPERTY_INCARNATION, "")

    @property
    def can_copy(self) -> bool:
        """Whether the bookie copies entries from other bookies on request."""
        return dict(self.properties).get(PROPERTY_CAN_COPY) == "true"

    def endpoint(self, protocol: str) -> Endpoint | None:
        """First endpoint with ``protocol``, or None."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)


def encode_service_info(info: ServiceInfo) -> bytes:
    """Bytes of a registration node."""
    message = BookieServiceInfoFormat(properties=dict(info.properties))
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    return message.SerializeToString(deterministic=True)


@lru_cache(_KNOWN_MAX)
def decode_service_info(data: bytes, bookie: BookieId) -> ServiceInfo:
    """Read a registration node. An empty one means Apache's protocol at the address given by the bookie's id.

    Raises:
        UnreadableServiceInfoError: invalid bytes, or an empty payload and an id that is not an address.
    """
    if not data:
        return ServiceInfo((_endpoint_of_id(bookie),))
    try:
        message = BookieServiceInfoFormat.FromString(data)
        if not message.IsInitialized():
            raise UnreadableServiceInfoError(f"the registration of {bookie} lacks a required field")
        endpoints = tuple(_endpoint(bookie, endpoint) for endpoint in message.endpoints)
        properties = tuple(
            sorted((_text(bookie, name), _text(bookie, message.properties[name])) for name in message.properties)
        )
    except (DecodeError, ValueError) as error:
        raise UnreadableServiceInfoError(f"the registration of {bookie} is damaged") from error
    return ServiceInfo(endpoints, tuple(properties))


def _endpoint(bookie: BookieId, message: BookieServiceInfoFormat.Endpoint) -> Endpoint:
    return Endpoint(
        _text(bookie, message.id),
        _text(bookie, message.host),
        message.port,
        _text(bookie, message.protocol),
        _texts(bookie, message.auth),
        _texts(bookie, message.extensions),
    )


def _texts(bookie: BookieId, values: Sequence[object]) -> tuple[str, ...]:
    return tuple(_text(bookie, value) for value in values)


def _text(bookie: BookieId, value: object) -> str:
    if not isinstance(value, str):  # protobuf returns bytes for a string with invalid UTF-8
        raise UnreadableServiceInfoError(f"the registration of {bookie} holds something that is not text")
    return value


def _endpoint_of_id(bookie: BookieId) -> Endpoint:
    host, _, port = bookie.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= 65535:
        raise UnreadableServiceInfoError(f"bookie {bookie} registered without an address, and its id is not host:port")
    return Endpoint(str(bookie), host, int(port), PROTOCOL_APACHE)
