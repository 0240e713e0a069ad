"""pyarrow does not import pandas unasked. The test runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from bookie.runtime.arrow import leave_out_pandas
leave_out_pandas()
import pyarrow as pa
pa.array(["a"])
print("pandas" in sys.modules)
"""
_ASKED = """
import pandas
print(pa.table({"a": [1, None]}).to_pandas().equals(pandas.DataFrame({"a": [1, None]})))
print(pa.Array.from_pandas(pandas.Series([1.0, float("nan")])).null_count, pa.array(pandas.Series(["b"])).to_pylist())
"""


def _printed(program: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()


def test_pandas_is_imported_for_a_conversion_only() -> None:
    assert _printed(_PROGRAM)[0] == "False"
    assert _printed(_PROGRAM + _ASKED)[-3:] == ["True", "1", "['b']"]
