"""The network part of `stoker doctor` alone: python doctor_network.py COMPUTE_S FLAGS.

Ranks are started and joined as the verb does it; how long a step computes is told, not measured.
"""

from __future__ import annotations

import argparse
import sys

from stoker.doctor.ranks import network_across
from stoker.errors import StokerError

parser = argparse.ArgumentParser()
parser.add_argument("compute_s", type=float)
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--nodes")
parser.add_argument("--rendezvous")
parser.add_argument("--address")
try:
    parsed = parser.parse_args()
    # A resnet18 has so many bytes of gradient.
    found = network_across(parsed, sys.argv[2:], gradient_bytes=46_758_184)
    from stoker.show.link import lines, meaning

    print("\n".join([*lines(found), *meaning(found, parsed.compute_s, batch_size=64)]))
except StokerError as error:
    print(f"stoker: {error}")
    sys.exit(error.exit_code)
