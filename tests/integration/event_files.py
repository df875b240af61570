"""Reads event files with TensorBoard's own EventAccumulator; run by an interpreter that has it.

Prints the steps and values of each scalar as JSON."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
reader.Reload()
tags = reader.Tags()
values = {tag: [[e.step, e.value] for e in reader.Scalars(tag)] for tag in tags["scalars"]}
print(json.dumps({"scalars": values, "tensors": tags["tensors"]}))
