"""What a Python worker's error was, told from the text in which Spark hands it to the driver."""

from __future__ import annotations

import re
from typing import Final

from pyspark.errors import PySparkException

from bookie.metadata.port import AccessDeniedError, StoreUnavailableError

_KINDS: Final = {kind.__name__: kind for kind in (AccessDeniedError, StoreUnavailableError)}
_RAISED: Final = re.compile(rf"\s*(?:[\w.]+\.)?({'|'.join(_KINDS)}): (.*)")


def store_error(error: PySparkException) -> AccessDeniedError | StoreUnavailableError | None:
    """The metadata store's error that a worker ended with; None: it was another one, or none can be told.

    A traceback names errors in quoted source lines and in errors that led to others, so that a name somewhere in it
    says nothing: the last line of the form ``Name: text`` does.
    """
    raised = [found for line in str(error).splitlines() if (found := _RAISED.fullmatch(line))]
    return _KINDS[raised[-1][1]](raised[-1][2].strip()) if raised else None


def first_line(error: PySparkException) -> str:
    """The first line of it that says anything."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
