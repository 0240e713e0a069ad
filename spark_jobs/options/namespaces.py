"""The number of namespaces of Pulsar that metrics name: the same option for the service and for a one-shot audit."""

from __future__ import annotations

from typing import Annotated, Final

from bookie.model.option import Option

NAMESPACES_MAX: Final = 50
"""Number of namespaces named in a summary, and largest number in metrics."""

NamespacesInMetrics = Annotated[
    int,
    Option(
        "The most namespaces of Pulsar with findings in the metrics, the worst first; 0: none.",
        minimum=0,
        maximum=NAMESPACES_MAX,
    ),
]
"""Each namespace adds a metric series for each kind and severity, and is stored in the record of the run in
ZooKeeper."""
