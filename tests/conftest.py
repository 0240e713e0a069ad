"""Shared fixtures live beside the ring that needs them; only what every ring needs is here."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.runtime.grpc_environment import prepare_grpc

prepare_grpc()

# No deadline for an example: a loaded machine is no defect. In continuous integration the same examples each time, so
# that a change is judged by what it changes; elsewhere new ones, which is where new defects are found.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


# A shell ignores SIGINT in what it starts in the background, and so would every process that a test wants to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the mark skips it
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where the ring with Apache's bookies is required, no test is skipped for want of ``openssl``."""
    if "apache" not in os.environ.get("BKHEAL_REQUIRE", "").split(",") or shutil.which("openssl") is not None:
        return
    for mark in item.iter_markers("skipif"):
        if (reason := str(mark.kwargs.get("reason"))).endswith("with openssl"):
            pytest.fail(f"{reason}, which is required (BKHEAL_REQUIRE) and not on the path")


@pytest.fixture(autouse=True)
def log_set_up_undone() -> Iterator[None]:
    """Commands that a test runs in this process set up logging for a process of their own."""
    named = [logging.getLogger(name) for name in ("", "kazoo", "kazoo.client", "py4j")]
    levels = [logger.level for logger in named]
    handlers = list(named[0].handlers)
    yield
    named[0].handlers[:] = handlers
    for logger, level in zip(named, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One real ZooKeeper for the whole test session; ask ``fresh_root`` for a place of your own in it."""
    server = asyncio.run(EmbeddedZooKeeper.start(tmp_path_factory.mktemp("zookeeper"), is_durable=False))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def fresh_root() -> str:
    """A ledgers root that no other test uses; neither it nor its parent exists yet."""
    return f"/t-{uuid.uuid4().hex}/ledgers"
