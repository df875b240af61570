"""Variables of torchrun that are left over, or half of them: answered, not joined."""

from __future__ import annotations

import pytest

from golden import check_golden
from stoker.errors import BadRequest
from stoker.fleet.variables import check_rank_variables

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
MISTAKES = [
    ({"RANK": "1"}, 1),
    ({"RANK": "zero"}, 1),
    ({"RANK": "-1"}, 1),
    ({"RANK": ""}, 1),
    ({"RANK": "\u0663"}, 1),
    ({"RANK": "\x1b[31m"}, 1),
    ({"LOCAL_RANK": "3"}, 1),
    ({"WORLD_SIZE": "0"}, 1),
    ({"WORLD_SIZE": "2"}, 1),
    ({"WORLD_SIZE": "2", "RANK": "0"}, 1),
    ({"WORLD_SIZE": "9" * 99}, 1),
    ({**TORCHRUN, "RANK": "2"}, 1),
    ({**TORCHRUN, "LOCAL_RANK": "2"}, 1),
    ({**TORCHRUN, "MASTER_ADDR": ""}, 1),
    ({**TORCHRUN, "MASTER_PORT": "high"}, 1),
    ({**TORCHRUN, "MASTER_PORT": "99999999999"}, 1),
    (TORCHRUN, 2),
]


def refusal(environ: dict[str, str], ranks: int) -> str:
    with pytest.raises(BadRequest) as error:
        check_rank_variables(environ, ranks)
    return str(error.value)


def test_mistakes_golden() -> None:
    check_golden("fleet_variables", [refusal(*mistake) for mistake in MISTAKES])


@pytest.mark.parametrize(
    "environ",
    [
        {},
        TORCHRUN,
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        {"RANK": "0"},
        {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7"},
    ],
)
def test_what_is_complete_or_means_nothing_is_accepted(environ: dict[str, str]) -> None:
    check_rank_variables(environ)
