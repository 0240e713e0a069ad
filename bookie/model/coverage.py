"""Quorum coverage: the answers needed from an ensemble, and from the write set of one entry.

An entry can be acknowledged after ``Qa`` members of its write set hold it. Any ``(Qw - Qa) + 1`` members of the write
set therefore include a holder of each acknowledged entry. This number of answers either finds the entry or rules it
out.

Source: docs/formats.md#coverage, T14.
"""

from __future__ import annotations

from collections.abc import Collection

from bookie.model.schedule import Stripe


def negative_quorum(write_quorum: int, ack_quorum: int) -> int:
    """Return the number of "never stored" answers from one write set needed to prove an entry unacknowledged."""
    return write_quorum - ack_quorum + 1


def is_covered(known: Collection[int], stripe: Stripe, ack_quorum: int) -> bool:
    """Return whether the ensemble positions in ``known`` include a holder of every acknowledged entry.

    This holds if each of the ``E`` write sets has at least ``negative_quorum`` known positions, i.e. fewer than ``Qa``
    unknown ones. A position with an error as its answer is unknown (docs/formats.md#coverage, #2333).
    """
    needed = negative_quorum(stripe.write_quorum, ack_quorum)
    answered = frozenset(known)
    return all(
        sum(position in answered for position in stripe.write_set(start)) >= needed
        for start in range(stripe.ensemble_size)
    )
