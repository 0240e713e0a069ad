"""A real Prometheus with the chart's rules, whose times are shortened, and its targets."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from bookie.embedded.process import ManagedProcess
from tests.chart.rule_files import find_program, write_rules
from tests.deadlines import PROGRAM_S, STATE_S

SCRAPE_S: Final = 3
"""The seconds between two scrapes, and the seconds to wait for an answer on a loaded machine."""
WINDOW_S: Final = 4 * SCRAPE_S
QUICKLY: Final[Mapping[str, object]] = {
    **{f"for_{name}": "1s" for name in ("brief", "short", "medium", "long", "hours")},
    "held_back_for": "1s",
    "maintenance_ends_soon_seconds": 4 * 86_400,
    "rate_window": f"{WINDOW_S}s",
}


@dataclass
class Prometheus:
    """A Prometheus process and its targets."""

    directory: Path
    port: int
    targets: dict[str, str] = field(default_factory=dict)
    """The addresses of the targets by name."""
    process: ManagedProcess | None = None
    thresholds: Mapping[str, object] = field(default_factory=dict)
    """Thresholds of the chart's rules, in addition to ``QUICKLY``."""

    def start(self) -> None:
        config = {
            "global": {
                "scrape_interval": f"{SCRAPE_S}s",
                "scrape_timeout": f"{SCRAPE_S}s",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(path) for path in write_rules(self.directory, {**QUICKLY, **self.thresholds})],
            "scrape_configs": [
                {
                    "job_name": "bkheal",
                    "file_sd_configs": [{"files": [str(self._targets_file)], "refresh_interval": "1s"}],
                }
            ],
        }
        self._write_targets()
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        options = {
            "config.file": self.directory / "prometheus.yml",
            "storage.tsdb.path": self.directory / "data",
            "web.listen-address": f"127.0.0.1:{self.port}",
        }
        command = [find_program("prometheus"), *(f"--{key}={value}" for key, value in options.items())]
        self.process = ManagedProcess.start("prometheus", command, log_path=self.directory / "prometheus.log")

    @property
    def running(self) -> ManagedProcess:
        assert self.process is not None
        return self.process

    def scrape(self, name: str, url: str) -> None:
        """Scrape the process at ``url`` from now on. It replaces an earlier target with the same name."""
        self.targets[name] = urllib.parse.urlsplit(url).netloc
        self._write_targets()

    async def get(self, path: str, **query: str) -> Any:
        """Return the answer of its API; None if it does not answer yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"

        def fetch() -> Any:
            try:
                with urllib.request.urlopen(url, timeout=STATE_S) as answer:
                    return json.load(answer)["data"]
            except (ConnectionError, TimeoutError):
                return None
            except urllib.error.URLError as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                return None

        return await asyncio.to_thread(fetch)

    async def value(self, query: str) -> float | None:
        """Return the only value of a query; None if there is none."""
        answer = await self.get("query", query=query)
        result = answer["result"] if answer else []
        return float(result[0]["value"][1]) if len(result) == 1 else None

    async def has_values(self, query: str) -> bool:
        """Whether the query has any value now."""
        answer = await self.get("query", query=query)
        return bool(answer and answer["result"])

    async def firing(self) -> dict[str, list[Any]] | None:
        """Return the firing alerts by name; None if it does not answer yet."""
        answer = await self.get("alerts")
        if not answer:
            return None
        found: dict[str, list[Any]] = {}
        for alert in answer["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        await self.running.wait_until(holds, what, PROGRAM_S)

    async def until_fire(self, *names: str) -> dict[str, list[Any]]:
        """Wait until all these alerts fire at the same time, and return them."""
        seen: dict[str, list[Any]] = {}

        async def are_firing() -> bool:
            seen.clear()
            seen.update(await self.firing() or {})
            return set(names) <= seen.keys()

        await self.until(are_firing, f"firing {names}")
        return {name: seen[name] for name in names}

    async def until_clear(self, *names: str) -> None:
        """Wait until none of these alerts fires in the newest evaluation."""

        await self.until(lambda: self.is_clear(*names), f"clearing {names}")

    async def is_clear(self, *names: str) -> bool:
        """Whether none of these alerts fires."""
        firing = await self.firing()
        return firing is not None and not set(names) & firing.keys()

    @property
    def _targets_file(self) -> Path:
        return self.directory / "targets.json"

    def _write_targets(self) -> None:
        entries = [{"targets": sorted(self.targets.values()), "labels": {"cluster": "test"}}]
        fresh = self._targets_file.with_suffix(".new")
        fresh.write_text(json.dumps(entries))
        fresh.replace(self._targets_file)


async def launch_exporter(metadata_uri: str, directory: Path, prometheus: Prometheus) -> ManagedProcess:
    """Start ``bkheal exporter``, and scrape it from now on."""
    words = ("--metadata-uri", metadata_uri, "--http-port", "0", "--backlog-interval-s", "1")
    command = [sys.executable, "-m", "auditor.cli.main", "exporter", *words]
    process = ManagedProcess.start("exporter", command, log_path=directory / "exporter.log")
    served = await process.wait_for_line(r"^exporter metrics on (http://\S+)$", STATE_S)
    prometheus.scrape("exporter", served[1])
    return process
