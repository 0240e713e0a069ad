"""Processor time of running processes, as counted by Linux. Unlike seconds, it hardly depends on other programs."""

from __future__ import annotations

import os
from pathlib import Path

from bookie.embedded.process import ManagedProcess


def cpu_s(process: ManagedProcess) -> float:
    """Return the processor time of a process in seconds, in steps of about 0.01; 0 if it has ended."""
    return process_cpu_s(process.pid) if process.is_running else 0.0


def process_cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds, in steps of about 0.01; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
