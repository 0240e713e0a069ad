"""The deadlines of tests for other processes. They stop a hang, and a passing test never reaches them.

A loaded machine makes everything slow, most of all the first seconds of a Java machine. None of these numbers is a
claim about speed. A short deadline fails a test without a defect; a long one costs time only in a failure.
"""

from __future__ import annotations

from typing import Final

STATE_S: Final = 120.0
"""The deadline for a state of another process with no obstacle to it."""
PROGRAM_S: Final = 300.0
"""The deadline for the end of a program, including a Spark session."""
