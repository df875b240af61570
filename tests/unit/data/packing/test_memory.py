"""As many packing workers as cores, fewer where memory does not allow them."""

from __future__ import annotations

import pytest

from golden import check_golden
from stoker.data.packing.memory import packing_workers
from stoker.errors import BadRequest
from stoker.host.limits import GB


def test_workers_are_as_many_as_cores_where_memory_allows() -> None:
    assert packing_workers(0, 24 * GB, 2) == 2
    assert packing_workers(0, 24 * GB, 64) == 47
    assert packing_workers(8, GB, 16) == 16


def test_fewer_where_it_does_not() -> None:
    assert packing_workers(1, 24 * GB, 16) == 3
    assert packing_workers(0, GB // 4, 16) == 1


def test_a_limit_too_small_for_one_worker_is_refused_golden() -> None:
    with pytest.raises(BadRequest, match=r"0\.3 .* 0\.5 GB") as caught:
        packing_workers(0.3, 24 * GB, 2)
    check_golden("packing_memory", [str(caught.value)])
