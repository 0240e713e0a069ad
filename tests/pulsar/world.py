"""A Pulsar for tests: messages, its admin API, and the HTTP API of a bookie."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tests.deadlines import PROGRAM_S, STATE_S
from tests.pulsar.cluster import Broker, PulsarCluster

if TYPE_CHECKING:
    import pulsar

_TIMEOUT_MS: Final = round(1000 * PROGRAM_S)


@dataclass
class PulsarWorld:
    """A cluster and its broker."""

    cluster: PulsarCluster
    broker: Broker
    http_port: int
    """The port of the first bookie's HTTP API."""

    async def admin(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
        """Send a request to the broker's admin API."""
        url = f"{self.broker.admin_url}/admin/v2/{path}"
        return await asyncio.to_thread(_request, url, method, body, content_type)

    async def set_read_only(self, *, is_read_only: bool) -> None:
        """Change the state of the first bookie, as an operator does."""
        url = f"http://127.0.0.1:{self.http_port}/api/v1/bookie/state/readonly"
        await asyncio.to_thread(_request, url, "PUT", {"readOnly": is_read_only})

    async def unload(self, topic: str) -> None:
        """Close the ledgers of a topic, given its full name. It opens new ones when it is used again."""
        domain, _, path = topic.partition("://")
        *namespace, local = path.split("/", 2)
        await self.admin("PUT", f"{'/'.join((domain, *namespace, quote(local, safe='')))}/unload")


def _request(url: str, method: str, body: Any, content_type: str = "application/json") -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": content_type}, method=method)
    with urllib.request.urlopen(request, timeout=STATE_S) as answer:
        found: bytes = answer.read()
    return found


@contextmanager
def pulsar_client(world: PulsarWorld) -> Iterator[pulsar.Client]:
    """Return Pulsar's client from PyPI, which logs only errors."""
    import pulsar  # an extension module of 20 MB that only this ring uses

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(world.broker.url, operation_timeout_seconds=round(PROGRAM_S), logger=logger)
    try:
        yield client
    finally:
        client.close()


@dataclass
class Topic:
    """A topic, and all messages that it acknowledged, in order."""

    name: str
    producer: pulsar.Producer
    sent: list[bytes] = field(default_factory=list)

    @classmethod
    def make(cls, client: pulsar.Client, name: str, **options: Any) -> Topic:
        """Create the topic and its producer."""
        return cls(name, client.create_producer(name, send_timeout_millis=_TIMEOUT_MS, **options))

    def send(self, count: int) -> None:
        """Send messages one by one, and wait for each acknowledgement."""
        for _ in range(count):
            message = b"%s-%d" % (self.name.encode(), len(self.sent))
            self.producer.send(message, partition_key=f"k{len(self.sent) % 7}")
            self.sent.append(message)

    def read(self, client: pulsar.Client) -> list[bytes]:
        """Return all messages in the topic, from its beginning, each once.

        If a topic is unloaded before an acknowledgement arrives, the producer sends the message again. Without Pulsar's
        deduplication, the topic then has it twice.
        """
        import pulsar

        reader = client.create_reader(self.name, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=_TIMEOUT_MS).data())
        reader.close()
        return list(dict.fromkeys(found))


@contextmanager
def load(topics: Sequence[Topic]) -> Iterator[None]:
    """Send to these topics continuously."""
    is_over = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not is_over.is_set():
                for topic in topics:
                    topic.send(1)
        except Exception as error:  # noqa: BLE001  # of any kind: raised again below, in the test's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]
