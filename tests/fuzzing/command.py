"""The command line of the search for inputs that crash a parser."""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
from collections.abc import Iterator
from typing import Final

from tests.fuzzing.mutation import mutated
from tests.fuzzing.targets import TARGETS, crash_of, describe

INPUTS: Final = 1_000_000
MEMORY_BYTES_MAX: Final = 4 << 30
CHUNK: Final = 1000
CHUNK_LIMIT_S: Final = 60.0
"""The deadline for a chunk of inputs. A thousand inputs take about a tenth of a second, so a slower parser hangs, and
the process ends."""


def crashes(name: str, chunk: str, count: int) -> Iterator[str]:
    """Try ``count`` inputs of a target and yield a description of each crash. The same chunk gives the same inputs."""
    target = TARGETS[name]
    rng = random.Random(f"{name} {chunk}")
    corpus = [*target.corpus, *target.hostile]
    for _ in range(count):
        data = mutated(corpus, rng)
        if (error := crash_of(target, data)) is not None:
            yield describe(name, chunk, data, error)


def main() -> int:
    """Try all inputs, and return 1 if a parser crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description="Feed damaged bytes to parsers.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="inputs in total (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another number gives other inputs (default: %(default)s)")
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    chunks, failed = -(-options.inputs // len(names) // CHUNK), 0
    for name in names:
        found: list[str] = []
        for chunk in range(chunks):
            faulthandler.dump_traceback_later(CHUNK_LIMIT_S, exit=True)
            found += crashes(name, f"{options.seed}.{chunk}", CHUNK)
            faulthandler.cancel_dump_traceback_later()
        sys.stdout.write(
            f"{name}: {chunks * CHUNK} inputs, {len(found)} crashes\n" + "".join(f"  {f}\n" for f in found[:3])
        )
        sys.stdout.flush()
        failed += len(found)
    return 1 if failed else 0
