"""Points in the code where a simulation may take an unlikely branch; outside simulations they are always false.

Code contains ``if fault_point("journal.roll_early"): ...`` for a rare but legal behaviour, such as a tiny batch, an
early timeout, one more read of the metadata, or a forced conflict. Without this, the behaviour would almost never occur
in an interleaving in which it does harm. Taking the branch must always be correct. Names are dotted: component, then
behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_fires: Callable[[str], bool] | None = None


def fault_point(name: str) -> bool:
    """Return whether to take the unlikely branch ``name``; always False outside ``inject_faults``."""
    return _fires is not None and _fires(name)


@contextmanager
def inject_faults(fires: Callable[[str], bool]) -> Iterator[None]:
    """Let ``fires`` decide each fault point while the block runs. For simulations only; not re-entrant."""
    global _fires
    assert _fires is None, "fault points already have a decider"
    _fires = fires
    try:
        yield
    finally:
        _fires = None
