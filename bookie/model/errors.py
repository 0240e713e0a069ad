"""The five error families, named after the caller's next step.

Damaged or missing data is a finding, not an exception; these errors are for failed requests.
"""

from __future__ import annotations


class BkhealError(Exception):
    """Root of all intentional errors of this project."""


class TransientError(BkhealError):
    """The request changed nothing and may succeed later: retry it within a budget."""


class ConflictError(BkhealError):
    """The state has changed: read it and decide again. Never retry the same request blindly."""


class PermanentError(BkhealError):
    """The request can never succeed unchanged; a person or the caller must change it."""


class OutcomeUnknownError(BkhealError):
    """The request may or may not have taken effect: read the state before doing anything else."""


class FatalError(BkhealError):
    """This process must stop: something it relies on is lost or impossible."""


class InvariantError(FatalError):
    """Our own code broke one of its rules. Never caught inside the package that raised it."""
