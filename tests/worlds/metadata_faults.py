"""The fault in a decoder's reason, found with the patterns that the check of metadata gives to Spark."""

from __future__ import annotations

import re

from bookie.model.metadata_faults import REASONS, MetadataFault


def fault_of(reason: str) -> MetadataFault | None:
    """The fault in the decoder's reason for refusing metadata; None for damaged or inaccessible bytes."""
    return next((fault for fault, pattern in REASONS if re.search(pattern, reason)), None)
