"""The setup of Apache's bookies for a comparison: the defaults, with enough memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie.embedded.apache_settings import ApacheOptions

BOOKIE_HEAP_MIB: Final = 768
_AS_APACHE_COMES: Final[Mapping[str, str]] = {
    "journalPreAllocSizeMB": "16",
    "skipListSizeLimit": str(64 << 20),
    "logSizeLimit": str(1 << 30),
    "pageLimit": "-1",
}
"""The embedded cluster sets these for small heaps and disks; here they are Apache's own defaults."""


def bookie_options(extra: Mapping[str, str] | None = None) -> ApacheOptions:
    """Apache's defaults, the journal synced before each answer, and ``extra`` settings by Apache's names."""
    return ApacheOptions(extra={**_AS_APACHE_COMES, **(extra or {})})
