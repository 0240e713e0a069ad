"""All dashboards."""

from __future__ import annotations

from dashboards.bookie import BOOKIE
from dashboards.overview import OVERVIEW
from dashboards.replicator import REPLICATOR
from dashboards.run import RUN

BOARDS = (OVERVIEW, RUN, REPLICATOR, BOOKIE)
