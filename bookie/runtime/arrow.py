"""Arrow without pandas, in the processes of bkheal.

The first array that pyarrow makes of Python objects imports pandas, if it is installed, to recognize pandas' own types.
The import takes 0.35 s of processor time and 58 MB, and no code of bkheal has such objects.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from typing_extensions import override


def leave_out_pandas() -> None:
    """Make the next import of pyarrow in this process, and in those that it forks, complete without pandas.

    Only what pyarrow does unasked is affected: pandas can be imported as always, and pyarrow imports it for a
    conversion to or from pandas. Without effect if pyarrow is loaded.
    """
    if "pyarrow" not in sys.modules and not any(isinstance(finder, _ArrowFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ArrowFinder())


class _ArrowFinder(MetaPathFinder):
    """Finds pyarrow as the other finders do, with a loader that completes the import."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "pyarrow":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ArrowLoader(spec.loader)
        return spec


class _ArrowLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    @override
    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if "pandas" in sys.modules:
            return
        refused = _PandasRefused()
        sys.meta_path.insert(0, refused)
        try:
            module.array([])  # pyarrow looks for pandas once
        finally:
            sys.meta_path.remove(refused)


class _PandasRefused(MetaPathFinder):
    """Refuses pandas to the current thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    @override
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("pyarrow does without pandas here", name=fullname)
