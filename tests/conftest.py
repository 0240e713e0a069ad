"""The fixtures and hooks of every ring. Other shared fixtures are in the folder of their ring."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata import access
from bookie.metadata.bookies import topology
from bookie.runtime.arrow import leave_out_pandas
from bookie.runtime.grpc_environment import prepare_grpc
from tests.class_archive import spark_environment
from tests.required import missing, why_missing
from tests.rings.plan import TESTS, load_rings
from tests.zookeeper_release import use_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

prepare_grpc()
leave_out_pandas()

# Every run uses the same examples, so that a failure is the effect of a change. An example has no deadline, because a
# loaded machine is not a defect. ``--search`` tries twenty times as many, new examples to find new defects.
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("search", deadline=None, max_examples=10 * settings.get_profile("default").max_examples)


# A shell makes its background processes ignore SIGINT. Processes that tests start would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


GARBAGE_OBJECTS = 25_000
"""The number of new objects after which Python collects garbage; its default is 700."""
COLLECTION_OBJECTS = 1_000_000
"""The same while tests are collected, when almost every object stays."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--search", action="store_true", help="Hypothesis tries new examples instead of the recorded ones")


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(COLLECTION_OBJECTS)
    use_release()
    settings.load_profile("search" if config.getoption("search") else "gate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test the time limit of its ring, which stops a test that hangs; unit tests have pytest's limit."""
    limits = {ring.name: ring.test_limit_s for ring in load_rings()}
    for item in items:
        ring = item.path.relative_to(TESTS).parts[0]
        if item.get_closest_marker("timeout") is None and ring in limits:
            item.add_marker(pytest.mark.timeout(limits[ring]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if this machine lacks one of its programs, or fail it if the program is required."""
    for mark in item.iter_markers("needs"):
        [name] = mark.args
        if why := why_missing(name):
            missing(name, why)


@pytest.fixture(autouse=True)
def process_settings_undone() -> Iterator[None]:
    """Restore what commands in this process set for the whole process: the logging setup, and the access to ZooKeeper.

    Problems of a topology are logged again even if an earlier test of this process logged the same ones.
    """
    topology._logged.clear()
    named = [logging.getLogger(name) for name in ("", "kazoo", "kazoo.client", "py4j")]
    levels = [logger.level for logger in named]
    handlers = list(named[0].handlers)
    access_before = list(access._process_access)
    yield
    access._process_access[:] = access_before
    named[0].handlers[:] = handlers
    for logger, level in zip(named, levels, strict=True):
        if logger.level != level:  # to set it clears the caches of all loggers
            logger.setLevel(level)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One real ZooKeeper for the whole test session. ``fresh_root`` gives each test its own root in it."""
    server = asyncio.run(EmbeddedZooKeeper.start(tmp_path_factory.mktemp("zookeeper"), is_durable=False))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def fresh_root() -> str:
    """A ledgers root that only this test uses. Neither it nor its parent exists yet."""
    return f"/t-{uuid.uuid4().hex}/ledgers"


@pytest.fixture(scope="session")
def quick_spark() -> Iterator[None]:
    """Start Spark with its class archive, in this process and in all later child processes."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in spark_environment().items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(quick_spark: None) -> Iterator[SparkSession]:
    """One local Spark session for the whole test session, with two cores, the UI, and the registered data sources.

    A start takes seconds, a warm audit one second. Tests use this session unless they check the start of a process.
    """
    from spark_jobs.datasource.register import register  # the import takes seconds, and only some rings need it
    from spark_jobs.session import SessionSettings, spark_session

    made = SessionSettings(master="local[2]", shuffle_partitions=2, is_ui_enabled=True, extra=(("spark.ui.port", "0"),))
    with spark_session(made) as session:
        register(session)
        yield session


def pytest_collection_finish() -> None:
    """Exclude the objects loaded so far from garbage collections, because they stay until the end, and collect rarely.

    With Python's default thresholds, collections take an eighth of the time of the unit tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 20)
