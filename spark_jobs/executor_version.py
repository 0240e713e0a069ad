"""Whether an executor has the code of the driver.

Tasks contain names and data of the driver's code. Another version could misread them without an error.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from bookie.model.errors import PermanentError
from bookie.runtime.version import UNKNOWN_VERSION, installed_version

_SENTENCE: Final = "the executor on {host} has bkheal {own}, and the driver has {driver}"
_SENTENCE_PATTERN: Final = re.compile(_SENTENCE.format(host=r"\S+", own=r"\S+", driver=r"[^\s\\'\"]+"))


class OtherVersionError(PermanentError):
    """An executor has another version of the package than the driver."""


def check_version(driver_version: str) -> None:
    """Check that this process has the version of the driver. A version unknown on one side is not compared.

    Raises:
        OtherVersionError: the versions differ.
    """
    own = installed_version()
    if own != driver_version and UNKNOWN_VERSION not in (own, driver_version):
        raise OtherVersionError(_SENTENCE.format(host=socket.gethostname(), own=own, driver=driver_version))


def version_problem(text: str) -> str | None:
    """Return the sentence of an ``OtherVersionError`` in the text of an error from Spark; None: the text has none."""
    found = _SENTENCE_PATTERN.search(text)
    return None if found is None else found.group()
