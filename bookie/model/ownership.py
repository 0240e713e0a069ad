"""The owner of a ledger in Pulsar, according to Pulsar's custom metadata in it (pure).

The invariant: a name is either decoded in full or not at all. Custom metadata is written by other programs and may
contain anything. If a value breaks a rule of docs/formats.md#custom-metadata-of-pulsar, the result is an owner without
names, never an error, and never a partial name: a wrong topic in a report is worse than none.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus, unquote_plus

NAME_BYTES_MAX: Final = 4096
"""Longer names are not decoded. Pulsar's names are parts of paths in ZooKeeper, and far shorter."""
_DOMAINS: Final = frozenset({"persistent", "non-persistent"})
_SEGMENT: Final = "segment"
_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_PARTITION_MAX: Final = (1 << 31) - 1
_ENCODED: Final = re.compile(r"(?:[A-Za-z0-9.*_+-]|%[0-9A-Fa-f]{2})+")
"""The output of Java's URLEncoder."""


class Component(enum.StrEnum):
    """The content of a Pulsar ledger."""

    MANAGED_LEDGER = "managed-ledger"
    """Messages of a topic."""
    CURSOR = "cursor"
    """The position of a subscription."""
    SCHEMA = "schema"
    COMPACTED = "compacted-ledger"
    """The compacted copy of a topic."""
    DELAYED_INDEX = "delayed-index-bucket"
    """A part of the index of delayed messages of a subscription."""
    UNKNOWN = "unknown"
    """Written by Pulsar, but not decoded by this release."""


class SystemRole(enum.StrEnum):
    """The purpose of a system topic of Pulsar, in the order of importance."""

    TOPIC_POLICIES = "topic policies"
    TRANSACTIONS = "transactions"
    LOAD_BALANCER = "load balancer"
    FUNCTIONS = "functions"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Topic:
    """The name of a topic, in the forms accepted by Pulsar's tools."""

    tenant: str
    namespace: str
    """With its tenant: ``public/default``."""
    name: str
    """In full: ``persistent://public/default/orders-partition-3``."""

    @property
    def managed_ledger(self) -> str:
        """The name of its managed ledger."""
        domain, _, path = self.name.partition("://")
        local = path.removeprefix(f"{self.namespace}/")
        if domain == _SEGMENT:
            topic, _, segment = local.rpartition("/")
            return f"{self.namespace}/{domain}/{encoded(topic)}/{encoded(segment)}"
        return f"{self.namespace}/{domain}/{encoded(local)}"

    @property
    def role(self) -> SystemRole | None:
        """The purpose of a system topic; None for topics of users."""
        return system_role(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a ledger: a part of Pulsar."""

    component: Component
    topic: Topic | None = None
    subscription: str | None = None


UNKNOWN_OWNER: Final = Owner(Component.UNKNOWN)

OWNER_COLUMNS: Final = ("tenant", "namespace", "topic", "component", "subscription")
"""Columns of tables of ledgers and of findings: null if not named by the custom metadata of a ledger."""
OWNING_KEYS: Final = (
    "pulsar/managed-ledger",
    "pulsar/schemaId",
    "pulsar/compactedTopic",
    "pulsar/delayedIndexTopic",
)
"""Keys of the custom metadata with the topic's name as the value."""
OwnerNames = tuple[str | None, str | None, str | None, str | None, str | None]
"""Values of ``OWNER_COLUMNS``."""
NO_OWNER: Final[OwnerNames] = (None, None, None, None, None)


def owner_names(owner: Owner | None) -> OwnerNames:
    """Return the values of ``OWNER_COLUMNS`` for an owner."""
    if owner is None:
        return NO_OWNER
    if owner.topic is None:
        return None, None, None, owner.component.value, owner.subscription
    return owner.topic.tenant, owner.topic.namespace, owner.topic.name, owner.component.value, owner.subscription


def is_written_by_pulsar(custom: Mapping[str, bytes]) -> bool:
    """Return whether Pulsar wrote this custom metadata; ``owner_of`` then returns an owner."""
    return custom.get("application") == b"pulsar"


def owner_of(custom: Iterable[tuple[str, bytes]]) -> Owner | None:
    """Return the owner named by custom metadata; None if Pulsar did not write it."""
    values = dict(custom)
    if not is_written_by_pulsar(values):
        return None
    try:
        return _owner(values)
    except ValueError:  # also for bytes other than UTF-8
        return UNKNOWN_OWNER


def topic_of_managed_ledger(name: str) -> Topic:
    """Return the topic of a managed ledger. The ledger's name is also its path in ZooKeeper.

    Raises:
        ValueError: it is not the name of a topic's managed ledger.
    """
    parts = name.split("/")
    if len(parts) == 5 and parts[2] == _SEGMENT:  # a part of a scalable topic
        tenant, namespace, _, local, segment = parts
        return _topic(_SEGMENT, (tenant, namespace), f"{decoded(local)}/{decoded(segment)}")
    if len(parts) not in (4, 5) or parts[-2] not in _DOMAINS:
        raise ValueError("not the name of a managed ledger")
    return _topic(parts[-2], parts[:-2], decoded(parts[-1]))


def topic_of_schema(schema_id: str) -> Topic:
    """Return the topic of a schema. Partitions of a topic share its schema.

    Raises:
        ValueError: it is not the id of a schema.
    """
    parts = schema_id.split("/")
    if len(parts) != 3:
        raise ValueError("not the id of a schema")
    return _topic("persistent", parts[:-1], decoded(parts[-1]))


def decoded(text: str) -> str:
    """Return the text that Java's URLEncoder encoded as ``text``.

    Raises:
        ValueError: it is not the output of this encoder.
    """
    if not _ENCODED.fullmatch(text):
        raise ValueError("not an encoded name")
    return unquote_plus(text, errors="strict")


def encoded(text: str) -> str:
    """Return ``text`` encoded as by Java's URLEncoder."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def partitioned_name(topic: str) -> str:
    """Return the name of a topic without its partition number, if any."""
    match = _PARTITION.fullmatch(topic)
    return match[1] if match and int(match[2]) <= _PARTITION_MAX else topic


def system_role(namespace: str | None, topic: str | None) -> SystemRole | None:
    """Return the purpose of a system topic; None for topics of users. Both arguments are full names."""
    if namespace is None or topic is None:
        return None
    _, _, path = partitioned_name(topic).partition("://")
    local = path.removeprefix(f"{namespace}/")
    if local == "__change_events":
        return SystemRole.TOPIC_POLICIES
    if local.startswith("__transaction_") or local.endswith("__transaction_pending_ack"):
        return SystemRole.TRANSACTIONS
    if namespace == "pulsar/system":
        if local == "transaction_coordinator_assign":
            return SystemRole.TRANSACTIONS
        return SystemRole.LOAD_BALANCER if local.startswith("loadbalancer-") else SystemRole.OTHER
    return SystemRole.FUNCTIONS if namespace == "public/functions" else None


def _owner(values: Mapping[str, bytes]) -> Owner:
    match values.get("component"):
        case b"managed-ledger" if "pulsar/cursor" in values:
            topic = topic_of_managed_ledger(_text(values, "pulsar/managed-ledger"))
            return Owner(Component.CURSOR, topic, decoded(_text(values, "pulsar/cursor")))
        case b"managed-ledger":
            return Owner(Component.MANAGED_LEDGER, topic_of_managed_ledger(_text(values, "pulsar/managed-ledger")))
        case b"schema":
            return Owner(Component.SCHEMA, topic_of_schema(_text(values, "pulsar/schemaId")))
        case b"compacted-ledger":
            return Owner(Component.COMPACTED, _named(_text(values, "pulsar/compactedTopic")))
        case b"delayed-index-bucket":
            return _delayed_index(values)
        case _:
            return UNKNOWN_OWNER


def _delayed_index(values: Mapping[str, bytes]) -> Owner:
    """Return the owner of a delayed-index bucket. Pulsar's first form names only the bucket."""
    if "pulsar/delayedIndexTopic" not in values:
        return Owner(Component.DELAYED_INDEX)
    topic = _named(_text(values, "pulsar/delayedIndexTopic"))
    if "pulsar/delayedIndexCursor" not in values:
        return Owner(Component.DELAYED_INDEX, topic)
    return Owner(Component.DELAYED_INDEX, topic, decoded(_text(values, "pulsar/delayedIndexCursor")))


def _named(name: str) -> Topic:
    """Return a topic by its full name. A name of four parts has the form of version 1, with the cluster."""
    domain, separator, path = name.partition("://")
    parts = path.split("/", 3)
    if not separator or domain not in _DOMAINS or len(parts) < 3:
        raise ValueError("not the name of a topic")
    return _topic(domain, parts[:-1], parts[-1])


def _topic(domain: str, namespace: Iterable[str], local: str) -> Topic:
    parts = tuple(namespace)
    if not local or not all(parts):
        raise ValueError("a part of the name is empty")
    return Topic(parts[0], "/".join(parts), f"{domain}://{'/'.join(parts)}/{local}")


def _text(values: Mapping[str, bytes], key: str) -> str:
    value = values.get(key)
    if value is None or len(value) > NAME_BYTES_MAX:
        raise ValueError(f"no usable value of {key}")
    return value.decode()
