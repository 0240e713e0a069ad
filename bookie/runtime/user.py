"""The name of the user running this process."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Return the user's name as UTF-8, or ``uid N`` if the user has none, as in many containers."""
    try:
        return getpass.getuser().encode(errors="backslashreplace").decode()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
