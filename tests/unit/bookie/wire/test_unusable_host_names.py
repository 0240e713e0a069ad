"""A bookie whose registered host name cannot be looked up is an unreachable bookie, not an error of the caller."""

from __future__ import annotations

import pytest

from bookie.model.ids import BookieId
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import Status
from bookie.wire.requests import Info
from bookie.wire.resolver import APACHE_PROTOCOL, GRPC_PROTOCOL, BookieAddress

_TIMEOUT_S = 10.0


class _Registered:
    def __init__(self, host: str, protocol: str) -> None:
        self._address = BookieAddress(host, 3181, protocol)

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return self._address


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
@pytest.mark.parametrize("protocol", [GRPC_PROTOCOL, APACHE_PROTOCOL])
async def test_a_bookie_without_a_usable_host_name_is_unreachable(host: str, protocol: str) -> None:
    registered = _Registered(host, protocol)
    transport = (
        GrpcTransport(registered, is_plaintext=True) if protocol == GRPC_PROTOCOL else ApacheTransport(registered)
    )
    try:
        assert (await transport.ask(BookieId(f"{host}:3181"), Info(), _TIMEOUT_S)).status is Status.UNREACHABLE
    finally:
        await transport.close()
