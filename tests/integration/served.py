"""A process that serves metrics and probes, and requests for them."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bookie.embedded.process import ManagedProcess
from tests.deadlines import STATE_S


@dataclass
class Served:
    """A process with metrics."""

    process: ManagedProcess
    url: str

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        return await asyncio.to_thread(_get, self.url + path)

    async def send(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        """Request a change, which must succeed, and return the document of the answer."""
        data = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)

        def sent() -> Any:
            with urllib.request.urlopen(request, timeout=STATE_S) as reply:
                return json.load(reply)

        return await asyncio.to_thread(sent)

    async def values(self) -> Mapping[tuple[str, ...], float]:
        """Return every sample, by name and label values."""
        _, text = await self.get("/metrics")
        found = text_string_to_metric_families(text)
        return {(one.name, *one.labels.values()): one.value for family in found for one in family.samples}

    async def until_status(self, path: str, status: int) -> str:
        """Wait for the first answer with this status, and return its text."""

        async def is_there() -> bool:
            return (await self.get(path))[0] == status

        await self.process.wait_until(is_there, f"{status} from {path}", STATE_S)
        return (await self.get(path))[1]

    async def until_value(self, at_least: float, *key: str) -> None:
        """Wait until a sample has at least this value."""

        async def is_there() -> bool:
            return (await self.values())[key] >= at_least

        await self.process.wait_until(is_there, f"{key} of {at_least}", STATE_S)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=STATE_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
