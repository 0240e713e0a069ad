"""Places at which a simulation may take the unlikely branch: constant false everywhere else.

Code contains ``if fault_point("journal.roll_early"): ...`` wherever a rare but legal behaviour (a tiny batch, an early
timeout, one more read of the metadata, a forced conflict) would otherwise almost never meet the rare interleaving it
matters in. Taking the branch must always be correct. A dotted name: the part, then what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_fires: Callable[[str], bool] | None = None


def fault_point(name: str) -> bool:
    """Whether the unlikely branch ``name`` is to be taken; always False outside ``deciding_by``."""
    return _fires is not None and _fires(name)


@contextmanager
def deciding_by(fires: Callable[[str], bool]) -> Iterator[None]:
    """Let ``fires`` decide at each fault point while the block runs. For simulations only; not re-entrant."""
    global _fires
    assert _fires is None, "fault points already have a decider"
    _fires = fires
    try:
        yield
    finally:
        _fires = None
