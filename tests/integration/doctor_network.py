"""The links of `stoker doctor` alone: python doctor_network.py COMPUTE_S FLAGS.

Ranks are started as the verb starts them; how long a step computes is an argument, not measured.
"""

from __future__ import annotations

import argparse
import sys

from stoker.doctor.ranks import RankOptions, measure_between_ranks
from stoker.errors import StokerError

parser = argparse.ArgumentParser()
parser.add_argument("compute_s", type=float)
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--nodes")
parser.add_argument("--rendezvous")
parser.add_argument("--address")
try:
    parsed = vars(parser.parse_args())
    compute_s = parsed.pop("compute_s")
    # The gradient of a resnet18 has this many bytes.
    report = measure_between_ranks(RankOptions(**parsed, arguments=sys.argv[2:]), 46_758_184)
    from stoker.show.machine.link import lines, step_lines

    print("\n".join([*lines(report), *step_lines(report, compute_s, batch_size=64)]))
except StokerError as error:
    print(f"stoker: {error}")
    sys.exit(error.exit_code)
