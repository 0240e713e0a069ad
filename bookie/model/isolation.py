"""Pulsar's bookie groups: which bookies a ledger may have that asks for some of them in its custom metadata.

The topology puts bookies into named groups, and a ledger names primary and secondary ones. The rule is that of Pulsar's
``IsolatedBookieEnsemblePlacementPolicy.replaceBookie``:

- bookies of the primary groups, when there are enough of them for an ensemble;
- otherwise those of the secondary groups as well, and if that is still not enough, those in no group at all;
- never those that are only in other groups. A primary group ``*`` means every bookie. A ledger that asks for the policy
  and names no primary group may have, by the same steps, what no group has claimed.

If the custom metadata cannot be understood, or no group is known, every bookie is a candidate, as in Pulsar: a ledger
without copies is worse off than one with a copy in the wrong place. ``not_kept_because`` contains the reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId

POLICY_KEY: Final = "EnsemblePlacementPolicyConfig"
"""Of the custom metadata in which Pulsar's brokers leave the policy of a ledger."""
ANY_GROUP: Final = "*"
_POLICY_CLASS_END: Final = "IsolatedBookieEnsemblePlacementPolicy"
"""Today's class name, and the older one with ``Zk`` in front."""
_WISHES_MAX: Final = 1024
"""Different wishes remembered; all ledgers of a Pulsar namespace have the same."""
_SHOWN_MAX: Final = 200


class UnreadableIsolationError(PermanentError):
    """The custom metadata of a ledger asks for a placement that cannot be understood."""


@dataclass(frozen=True, slots=True)
class BookieGroups:
    """Who is in which group. Bookies are named by id or by host, which then stands for every bookie on it."""

    names: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)

    def among(self, bookies: Iterable[BookieId], groups: Iterable[str]) -> frozenset[BookieId]:
        """Those of ``bookies`` that are in one of the groups; a group that is not known has none."""
        named = frozenset[str]().union(*(self.names.get(group, ()) for group in groups))
        return frozenset(each for each in bookies if each in named or each.rpartition(":")[0] in named)


NO_GROUPS: Final = BookieGroups()


@dataclass(frozen=True, slots=True)
class Isolation:
    """The groups that a ledger asks for."""

    primary: frozenset[str]
    secondary: frozenset[str] = frozenset()

    def __str__(self) -> str:
        first = ", ".join(sorted(self.primary)) or "none"
        return f"{first}; secondary {', '.join(sorted(self.secondary))}" if self.secondary else first


def isolation_of(custom: Iterable[tuple[str, bytes]]) -> Isolation | None:
    """The groups in this custom metadata; None if it does not restrict the bookies.

    Raises:
        UnreadableIsolationError: it asks for a policy, in a way that cannot be read.
    """
    data = next((value for key, value in custom if key == POLICY_KEY), None)
    return None if data is None else _decode(data)


def suited(
    custom: Iterable[tuple[str, bytes]], groups: BookieGroups, bookies: Collection[BookieId], ensemble_size: int
) -> frozenset[BookieId]:
    """Those of ``bookies`` that a ledger may have.

    Args:
        custom: custom metadata of the ledger.
        groups: of the topology.
        bookies: all that could be in an ensemble of it, its present members among them: they count for "enough".
        ensemble_size: how many are enough.
    """
    everyone = frozenset(bookies)
    try:
        wish = isolation_of(custom)
    except UnreadableIsolationError:
        return everyone
    if wish is None or not groups.names:
        return everyone
    found = groups.among(everyone, wish.primary)
    if len(found) < ensemble_size:
        found |= groups.among(everyone, wish.secondary)
    if len(found) < ensemble_size:
        found |= everyone - groups.among(everyone, groups.names)
    return found


def not_kept_because(custom: Iterable[tuple[str, bytes]], groups: BookieGroups) -> str | None:
    """The reason why a ledger's groups cannot be respected; None if they can, or if there are none."""
    try:
        wish = isolation_of(custom)
    except UnreadableIsolationError as error:
        return str(error)
    if wish is not None and not groups.names:
        return f"the topology has no bookie groups, and the ledger asks for {wish}"
    return None


@lru_cache(maxsize=_WISHES_MAX)
def _decode(data: bytes) -> Isolation | None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableIsolationError(f"{POLICY_KEY} is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("policyClass"), str):
        raise UnreadableIsolationError(f"{POLICY_KEY} names no policy class: {data[:_SHOWN_MAX]!r}")
    if not content["policyClass"].endswith(_POLICY_CLASS_END):
        return None
    properties = content.get("properties", {})
    if not isinstance(properties, dict):
        raise UnreadableIsolationError(f"{POLICY_KEY} has no properties: {data[:_SHOWN_MAX]!r}")
    primary = _groups(properties.get("isolationBookieGroups"))
    if ANY_GROUP in primary:
        return None
    return Isolation(primary, _groups(properties.get("secondaryIsolationBookieGroups")))


def _groups(value: Any) -> frozenset[str]:
    """A text with commas or a list of texts, as Java's configuration classes make either. Spaces are part of names."""
    if value is None:
        return frozenset()
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise UnreadableIsolationError(
            f"{POLICY_KEY} names groups by something else than text: {value!r:.{_SHOWN_MAX}}"
        )
    return frozenset(name for text in texts for name in text.split(",") if name)
