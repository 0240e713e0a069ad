"""Find the fault that a decoder's message names, by the patterns that the metadata check passes to Spark."""

from __future__ import annotations

import re

from bookie.model.metadata_faults import REASONS, MetadataFault


def fault_of(reason: str) -> MetadataFault | None:
    """Return the fault that the decoder's message names; None if the bytes are damaged or cannot be read."""
    return next((fault for fault, pattern in REASONS if re.search(pattern, reason)), None)
