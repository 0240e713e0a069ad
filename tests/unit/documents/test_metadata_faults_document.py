"""The table of metadata faults contains every fault with its weight, meaning and advice."""

from __future__ import annotations

from pathlib import Path

from bookie.model.metadata_faults import MetadataFault

ROOT = Path(__file__).resolve().parents[3]


def test_every_fault_is_in_the_table() -> None:
    lines = (ROOT / "docs" / "audits.md").read_text().splitlines()
    for fault in MetadataFault:
        assert f"| `{fault.label}` | {fault.weight.value} | {fault.meaning} | {fault.advice} |" in lines
