"""The committed code for every ``.proto`` file equals the compiler's current output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    script = ROOT / ".ci" / "generate_protos.py"
    subprocess.run([sys.executable, str(script), "--out", str(tmp_path)], check=True, timeout=60)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert made
    stale = [str(name) for name, data in made.items() if not _is_committed(ROOT / name, data)]
    assert not stale, "run: python .ci/generate_protos.py"


def _is_committed(path: Path, data: bytes) -> bool:
    return path.exists() and path.read_bytes() == data
