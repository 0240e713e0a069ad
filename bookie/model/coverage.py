"""How many answers are enough: quorum coverage of an ensemble, and of one entry's write set.

An entry may have been acknowledged once ``Qa`` members of its write set hold it. So it cannot have been acknowledged
without one of any ``(Qw - Qa) + 1`` members of that write set; as many answers either contain it or rule it out.

Source: docs/formats.md#coverage, T14.
"""

from __future__ import annotations

from collections.abc import Collection

from bookie.model.schedule import write_set


def negative_quorum(write_quorum: int, ack_quorum: int) -> int:
    """The number of "never stored" answers in one write set which prove an entry unacknowledged."""
    return write_quorum - ack_quorum + 1


def is_covered(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Whether the ensemble positions in ``known`` have met every acknowledgement that any write set can have given.

    True when each of the ``E`` write sets has at least ``negative_quorum`` known positions, in other words fewer than
    ``Qa`` unknown ones. A position that answered with an error is not known (docs/formats.md#coverage, #2333).
    """
    needed = negative_quorum(write_quorum, ack_quorum)
    answered = frozenset(known)
    return all(
        sum(position in answered for position in write_set(start, ensemble_size, write_quorum)) >= needed
        for start in range(ensemble_size)
    )
