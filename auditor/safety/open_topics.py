"""The Pulsar topics whose open ledgers lie on certain bookies, by the custom metadata of the ledgers. Pure.

A drain leaves a ledger with a writer to its writer, and the broker of an idle topic keeps its ledger open for hours.
Unloading the topic closes its ledgers at once, so a drain names those topics.

Source: docs/formats.md#custom-metadata-of-pulsar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_plus

SHOWN_MAX: Final = 1000
"""Topics that a status names."""
_MANAGED_LEDGER: Final = "pulsar/managed-ledger"
_COMPACTED_TOPIC: Final = "pulsar/compactedTopic"
_PERSISTENT: Final = "persistent"


def topic_of(custom: Mapping[str, bytes]) -> str:
    """The full name of the topic that a broker unloads to close this ledger; empty if the metadata names none."""
    if (topic := custom.get(_COMPACTED_TOPIC)) is not None:
        return topic.decode(errors="replace")
    parts = custom.get(_MANAGED_LEDGER, b"").decode(errors="replace").split("/")
    if len(parts) not in (4, 5) or parts[-2] != _PERSISTENT or not all(parts):
        return ""
    *namespace, _, name = parts
    return f"{_PERSISTENT}://{'/'.join(namespace)}/{unquote_plus(name)}"
