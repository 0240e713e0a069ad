"""The locations of bookies: paths, their failure domains, and the distance between two bookies.

A location has Apache's form: ``/rack``, ``/region/rack`` (or ``/zone/rack``), or ``/region/zone/rack``. The whole path
names the rack, so ``/eu/r1`` and ``/us/r1`` are two racks. The first part of a longer path names the region, and the
path without its last part the zone. Racks nest in zones, and zones in regions.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NewType

from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId
from bookie.model.isolation import NO_GROUPS, BookieGroups

Location = NewType("Location", str)
"""A location path in the normal form, as returned by ``location``."""

DEFAULT_RACK: Final = Location("/default-rack")
"""Location of a bookie outside the topology if all locations have one part (Apache's name)."""
DEFAULT_REGION: Final = Location("/default-region")
DEFAULT_REGION_AND_RACK: Final = Location("/default-region/default-rack")
"""Location of a bookie outside the topology if locations have regions or zones (Apache's name)."""

_PARTS_MAX: Final = 8
_PART: Final = re.compile(r"[A-Za-z0-9._:@=+-]{1,128}")


class InvalidLocationError(PermanentError):
    """Not a location path."""


class Level(enum.Enum):
    """Kinds of failure domains, the largest first."""

    REGION = "region"
    ZONE = "zone"
    RACK = "rack"


def location(text: str) -> Location:
    """Return ``text`` as a location: a missing leading slash is added, a trailing one removed.

    Raises:
        InvalidLocationError: no parts, too many parts, or a part that is empty or has characters not allowed in names.
    """
    parts = text.strip().strip("/").split("/")
    if len(parts) > _PARTS_MAX or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidLocationError(
            f"not a location: {text[:200]!r} (1 to {_PARTS_MAX} names of letters, digits and ._:@=+- after slashes, "
            "such as /rack1 or /region1/rack1)"
        )
    return Location("/" + "/".join(parts))


def domain(where: Location, level: Level) -> str:
    """Return the name of a location's failure domain of ``level``; unique within its level."""
    if level is Level.RACK:
        return where
    above, _, _ = where.rpartition("/")
    if not above:
        return DEFAULT_REGION
    return above if level is Level.ZONE else "/" + above.split("/", 2)[1]


def hops(first: Location, second: Location) -> int:
    """Return the steps between two locations through their nearest common domain: 0 within one rack, then 2, 4, ..."""
    ours, theirs = first.split("/"), second.split("/")
    common = 0
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            break
        common += 1
    return len(ours) + len(theirs) - 2 * common


@dataclass(frozen=True, slots=True)
class Topology:
    """Locations of bookies, by id or by host (the id without its port)."""

    locations: Mapping[str, Location] = field(default_factory=lambda: MappingProxyType({}))
    groups: BookieGroups = NO_GROUPS
    """Pulsar's groups of bookies; empty if the topology has none."""
    default: Location = field(init=False)
    """The location of a bookie outside the topology."""

    def __post_init__(self) -> None:
        is_deep = any(where.count("/") > 1 for where in self.locations.values())
        object.__setattr__(self, "default", DEFAULT_REGION_AND_RACK if is_deep else DEFAULT_RACK)

    def location_of(self, bookie: BookieId) -> Location:
        """Return the location of a bookie, or ``default`` if the topology does not contain it."""
        return self.known(bookie) or self.default

    def known(self, bookie: BookieId) -> Location | None:
        """Return the location of a bookie by its id, else by its host; None if the topology has neither."""
        where = self.locations.get(bookie)
        return where if where is not None else self.locations.get(bookie.rpartition(":")[0])

    def distance_from(self, where: Location, bookie: BookieId) -> int:
        """Return 2 if the bookie is in the rack ``where``, plus 2 for each level up to the first common domain."""
        return 2 + hops(where, self.location_of(bookie))
