"""The installed ``bkheal``. Ctrl-C during the imports of the command line ends the process without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line, and run it. Until it sets its own handlers, SIGINT has the system's default effect."""
    is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # background jobs ignore it
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from auditor.cli.main import run_process

    if is_pythons:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_process()
