"""Columns of tables as numpy arrays.

Invariant: nothing here imports pandas. pyarrow's own `to_numpy` imports it wherever it is
installed, which costs each process 28 MB (measured with pandas 3.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """A column of numbers without nulls as a read-only array; else raises pyarrow's error."""
    column = table.column(name)
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.from_dlpack(whole)
