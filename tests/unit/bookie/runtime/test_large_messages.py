"""Memory settings: freed messages do not cause page faults. The test runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import resource
from bookie.runtime.large_messages import prepare_for_large_messages
if {prepared}:
    prepare_for_large_messages()
def round():
    kept = [bytes(1 << 20) for _ in range(16)]
    return [message.replace(b"1", b"2") + b"x" for message in kept]
round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(*, prepared: bool) -> int:
    program = _PROGRAM.format(prepared=prepared)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def test_freed_messages_cause_no_page_faults_for_later_ones() -> None:
    assert _page_faults(prepared=True) < _page_faults(prepared=False) / 10
