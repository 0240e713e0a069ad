"""Pulsar's bookie groups: the bookies allowed by a ledger's custom metadata.

The topology assigns bookies to named groups, and a ledger names its primary and secondary groups. The rule comes from
Pulsar's ``IsolatedBookieEnsemblePlacementPolicy.replaceBookie``:

- bookies of the primary groups, if they are enough for an ensemble;
- otherwise also bookies of the secondary groups, and if these are still too few, bookies in no group at all;
- never bookies in other groups only. A primary group ``*`` means every bookie. For a ledger with the policy but without
  a primary group, the same steps apply; the last one adds the bookies in no group.

If the custom metadata is unreadable, or the topology has no groups, every bookie is a candidate, as in Pulsar: a
missing copy is worse than a copy in the wrong place. ``isolation_problem`` returns the reason.
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
"""Key of the custom metadata for a ledger's policy, written by Pulsar's brokers."""
ANY_GROUP: Final = "*"
_POLICY_CLASS_END: Final = "IsolatedBookieEnsemblePlacementPolicy"
"""End of the current class name, and of the older one with the prefix ``Zk``."""
_ISOLATION_CACHE_SIZE: Final = 1024
"""Size of the cache of decoded policies; all ledgers of a Pulsar namespace have the same policy."""
_SHOWN_MAX: Final = 200


class UnreadableIsolationError(PermanentError):
    """The custom metadata of a ledger requests a placement, but cannot be read."""


@dataclass(frozen=True, slots=True)
class BookieGroups:
    """The members of each group. A name is a bookie id, or a host and then means every bookie on it."""

    names: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)

    def among(self, bookies: Iterable[BookieId], groups: Iterable[str]) -> frozenset[BookieId]:
        """Return the members of ``bookies`` in any of ``groups``; an unknown group is empty."""
        named = frozenset[str]().union(*(self.names.get(group, ()) for group in groups))
        return frozenset(each for each in bookies if each in named or each.rpartition(":")[0] in named)

    def size(self, groups: Iterable[str]) -> int:
        """Return the number of names in any of ``groups``, registered or not."""
        return len(frozenset[str]().union(*(self.names.get(group, ()) for group in groups)))


NO_GROUPS: Final = BookieGroups()


@dataclass(frozen=True, slots=True)
class Isolation:
    """The groups requested by a ledger."""

    primary: frozenset[str]
    secondary: frozenset[str] = frozenset()

    def __str__(self) -> str:
        first = ", ".join(sorted(self.primary)) or "none"
        return f"{first}; secondary {', '.join(sorted(self.secondary))}" if self.secondary else first


def isolation_of(custom: Iterable[tuple[str, bytes]]) -> Isolation | None:
    """Return the groups named in this custom metadata; None if it does not restrict the bookies.

    Raises:
        UnreadableIsolationError: it contains an unreadable policy.
    """
    data = next((value for key, value in custom if key == POLICY_KEY), None)
    return None if data is None else _decode(data)


def allowed_bookies(
    custom: Iterable[tuple[str, bytes]], groups: BookieGroups, bookies: Collection[BookieId], ensemble_size: int
) -> frozenset[BookieId]:
    """Return the allowed bookies for a ledger among ``bookies``.

    Args:
        custom: custom metadata of the ledger.
        groups: the groups of the topology.
        bookies: all candidates for the ledger's ensembles, including its present members: these also count in the
            comparison with ``ensemble_size``.
        ensemble_size: the sufficient number of bookies.
    """
    try:
        wish = isolation_of(custom)
    except UnreadableIsolationError:
        wish = None
    return allowed_for(wish, groups, bookies, ensemble_size)


def allowed_for(
    wish: Isolation | None, groups: BookieGroups, bookies: Collection[BookieId], ensemble_size: int
) -> frozenset[BookieId]:
    """As ``allowed_bookies``, for a ledger with the requested groups ``wish``; None means any bookie."""
    everyone = frozenset(bookies)
    if wish is None or not groups.names:
        return everyone
    found = groups.among(everyone, wish.primary)
    if len(found) < ensemble_size:
        found |= groups.among(everyone, wish.secondary)
    if len(found) < ensemble_size:
        found |= everyone - groups.among(everyone, groups.names)
    return found


def forbidden_members(
    members: Collection[BookieId], wish: Isolation | None, groups: BookieGroups
) -> tuple[BookieId, ...]:
    """Return the members of an ensemble that the rule would forbid if every bookie of the topology were available.

    Only the topology counts: an outage does not change the result. A bookie of the secondary groups is forbidden unless
    the primary groups have fewer bookies than the ensemble. A bookie in no group is forbidden unless the primary and
    secondary groups together have fewer. A bookie in other groups only is always forbidden. Nothing is forbidden
    without a primary group, or without groups in the topology.
    """
    return tuple(sorted(set(members) - permitted(members, wish, groups, len(members))))


def permitted(
    bookies: Collection[BookieId], wish: Isolation | None, groups: BookieGroups, ensemble_size: int
) -> frozenset[BookieId]:
    """Return those of ``bookies`` that are not ``forbidden_members`` in an ensemble of this size."""
    if wish is None or not wish.primary or not groups.names:
        return frozenset(bookies)
    found = groups.among(bookies, wish.primary)
    if groups.size(wish.primary) < ensemble_size:
        found |= groups.among(bookies, wish.secondary)
    if groups.size(wish.primary | wish.secondary) < ensemble_size:
        found |= frozenset(bookies) - groups.among(bookies, groups.names)
    return found


def forbidden_members_text(found: Collection[BookieId], wish: Isolation, groups: BookieGroups) -> str:
    """Return a text with the reason why these ``forbidden_members`` are in the wrong place."""
    secondary = groups.among(found, wish.secondary)
    texts = []
    if others := sorted(set(found) - secondary):
        texts.append(f"{', '.join(others)} outside the bookie groups {wish}")
    if secondary:
        first, second = ", ".join(sorted(wish.primary)), ", ".join(sorted(wish.secondary))
        texts.append(
            f"{', '.join(sorted(secondary))} in the secondary bookie groups {second}, "
            f"and the primary groups {first} have enough bookies"
        )
    return "; ".join(texts)


def isolation_problem(custom: Iterable[tuple[str, bytes]], groups: BookieGroups) -> str | None:
    """Return why a ledger's groups cannot be respected; None if they can, or if it names none."""
    try:
        wish = isolation_of(custom)
    except UnreadableIsolationError as error:
        return str(error)
    if wish is not None and not groups.names:
        return f"the topology has no bookie groups, and the ledger asks for {wish}"
    return None


@lru_cache(maxsize=_ISOLATION_CACHE_SIZE)
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
    """Read a comma-separated text or a list of texts: Java's configuration classes write both. Names keep spaces."""
    if value is None:
        return frozenset()
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise UnreadableIsolationError(
            f"{POLICY_KEY} names groups by something else than text: {value!r:.{_SHOWN_MAX}}"
        )
    return frozenset(name for text in texts for name in text.split(",") if name)
