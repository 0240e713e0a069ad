from __future__ import annotations

import random
import socket
from unittest import mock

import pytest

from bookie.runtime.ports import NoFreePortError, free_loopback_port, is_loopback_port_free


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_loopback_port_free(server.getsockname()[1])


def test_the_port_chosen_is_free_and_not_an_ephemeral_port() -> None:
    port = free_loopback_port(random.Random())
    assert port < 32_768
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_port_in_use_is_skipped() -> None:
    first = free_loopback_port(random.Random(5))
    with socket.create_server(("127.0.0.1", first)):
        assert free_loopback_port(random.Random(5)) != first


def test_a_machine_without_free_ports_is_a_transient_error() -> None:
    with mock.patch("bookie.runtime.ports.is_loopback_port_free", return_value=False), pytest.raises(NoFreePortError):
        free_loopback_port(random.Random())
