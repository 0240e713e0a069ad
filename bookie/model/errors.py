"""The five error families, named after what the caller must do.

Damaged or missing data is a finding, not an exception; these are for requests that did not do what was asked.
"""

from __future__ import annotations


class BkhealError(Exception):
    """Root of every error this project raises on purpose."""


class TransientError(BkhealError):
    """Retry within a budget: nothing was changed and the same request may succeed later."""


class ConflictError(BkhealError):
    """The state has moved: read it again and decide again. Never retry the same request blindly."""


class PermanentError(BkhealError):
    """The request can never succeed as it is; a person or the caller must change it."""


class OutcomeUnknownError(BkhealError):
    """The request may or may not have taken effect: read the state before doing anything else."""


class FatalError(BkhealError):
    """This process must stop its work: something it relied on is lost or impossible."""


class InvariantError(FatalError):
    """A rule that our own code must keep was broken. Never caught inside the package that raised it."""
