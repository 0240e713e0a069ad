"""Settings of the HTTP server for metrics and probes. Importable without the server and its metrics library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bookie.model.hosts import host_problems
from bookie.model.option import Option


@dataclass(frozen=True, slots=True)
class StatusServerSettings:
    """The address to listen on, and the TLS files.

    Without ``cert`` the server uses plain HTTP: it serves no secrets, and access from other hosts must be enabled
    explicitly.
    """

    port: Annotated[
        int, Option("Port of /metrics, /livez, /readyz; 0 picks a free one; default: none.", minimum=0, maximum=65535)
    ]
    host: Annotated[str, Option("Address to serve metrics and probes on.")] = "127.0.0.1"
    cert: Annotated[
        Path | None, Option("PEM file: metrics over TLS, with --http-tls-key.", name="tls_cert", is_file=True)
    ] = None
    """The certificate chain; enables TLS."""
    key: Annotated[Path | None, Option("PEM file, with --http-tls-cert.", name="tls_key", is_file=True)] = None
    client_ca: Annotated[
        Path | None,
        Option(
            "PEM file: metrics only for clients with its certificates; probes for all.",
            name="tls_client_ca",
            is_file=True,
        ),
    ] = None
    """The CA for client certificates; ``/metrics`` and ``/version`` then require one."""

    def problems(self) -> list[str]:
        """Return the contradictions between the values; empty if none. The files are not read."""
        found = list(host_problems("http_host", self.host))
        if (self.cert is None) != (self.key is None):
            found.append("the certificate for HTTP and its key go together: give both, or neither")
        if self.client_ca is not None and self.cert is None:
            found.append("a client CA for HTTP needs a certificate and its key as well")
        return found
