"""How long tests wait for other processes: bounds that end a hang, never reached where a test passes.

A loaded machine makes everything slow, most of all the first seconds of a Java machine. None of these numbers is a
claim about speed. One that is too short fails a test for no defect; one that is too long costs time only in a failure.
"""

from __future__ import annotations

from typing import Final

STATE_S: Final = 120.0
"""For another process to reach a state that nothing holds back."""
PROGRAM_S: Final = 300.0
"""For a program to run to its end, a Spark session included."""
