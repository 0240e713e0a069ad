"""The modules of the product as syntax trees. Each package is parsed once in a process."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("auditor", "bookie", "replicator", "spark_jobs")


@dataclass(frozen=True, eq=False)
class Source:
    """One module.

    Attributes:
        path: relative to the repository.
        body: the statements of the module.
        nodes: every node of its tree.
    """

    path: str
    body: Sequence[ast.stmt]
    nodes: Sequence[ast.AST]

    @functools.cached_property
    def imported(self) -> frozenset[str]:
        """The full names of every imported module, in any part of the module."""
        names = {alias.name for node in self.nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {
            node.module for node in self.nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level
        }
        return frozenset(names)

    @property
    def libraries(self) -> frozenset[str]:
        """The top-level names of all imports."""
        return frozenset(name.partition(".")[0] for name in self.imported)


def sources(*folders: str) -> Sequence[Source]:
    """Return the modules below these folders (default: of the whole product), without generated ones, by path."""
    return [source for folder in folders or PACKAGES for source in _parsed(folder)]


@functools.cache
def _parsed(folder: str) -> Sequence[Source]:
    package, _, rest = folder.partition("/")
    if rest:
        return [source for source in _parsed(package) if source.path.startswith(f"{folder}/")]
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}
    return [Source(path, tree.body, list(ast.walk(tree))) for path, tree in trees.items()]
