"""Regenerate the Python code of every ``.proto`` file, beside the file or below another folder.

``python .ci/generate_protos.py`` rewrites the committed code; ``--out FOLDER`` writes the same tree elsewhere, which is
how the freshness test compares. Services get their grpc code as well.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("auditor", "bookie", "replicator", "spark_jobs")
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
"""Timestamps and the like, which a ``.proto`` may import."""


def proto_files() -> list[Path]:
    """Every ``.proto`` of the packages, relative to the repository, sorted."""
    return sorted(found.relative_to(ROOT) for package in PACKAGES for found in (ROOT / package).rglob("*.proto"))


def generate(out: Path) -> int:
    """Write the code of all files below ``out``; returns the compiler's exit code."""
    out.mkdir(parents=True, exist_ok=True)
    for proto in proto_files():
        plugins = ["python", "pyi"]
        if "\nservice " in (ROOT / proto).read_text():
            plugins.append("grpc_python")
        outputs = [f"--{plugin}_out={out}" for plugin in plugins]
        status = protoc.main(
            ["protoc", f"--proto_path={ROOT}", f"--proto_path={WELL_KNOWN}", *outputs, str(ROOT / proto)]
        )
        if status != 0:
            return int(status)
    return 0


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder to write to, default the repository")
    return generate(parser.parse_args().out.resolve())


if __name__ == "__main__":
    sys.exit(main())
