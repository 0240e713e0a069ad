"""The deadlines with which tests wait for other processes. They stop a hang, and a passing test never reaches them.

A loaded machine makes everything slow, most of all the start of a Java virtual machine. None of these numbers is a
claim about speed. A short deadline can fail a test without a defect; a long one costs time only if a test fails.
"""

from __future__ import annotations

from typing import Final

STATE_S: Final = 120.0
"""The deadline for a state that another process reaches if nothing prevents it."""
PROGRAM_S: Final = 300.0
"""The deadline for the end of a program, including a Spark session."""
