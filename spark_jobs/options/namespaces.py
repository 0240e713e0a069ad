"""How many namespaces of Pulsar metrics name."""

from __future__ import annotations

from typing import Annotated, Final

from bookie.model.option import Option

NAMESPACES_MAX: Final = 50
"""Namespaces named in a summary, and at most in metrics."""

NamespacesInMetrics = Annotated[
    int,
    Option(
        "Namespaces of Pulsar with findings that metrics name, the worst first; 0: none.",
        minimum=0,
        maximum=NAMESPACES_MAX,
    ),
]
"""Each is a series of its own for each kind and severity, and a part of the record of the run in ZooKeeper."""
