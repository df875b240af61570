"""What a process runs on and since when: recorded with every attempt."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stoker
from stoker.host.limits import usable_cores


def environment(device: torch.device) -> dict[str, Any]:
    """What this attempt ran on."""
    on_gpu = device.type == "cuda"
    return {
        "stoker": stoker.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "device": torch.cuda.get_device_name(device) if on_gpu else processor_name(),
        "threads": torch.get_num_threads(),
        "cores": usable_cores(),
        "command": sys.argv,
    }


def seconds_since_start() -> float:
    """How long this process has lived: imports and assembly are part of a run's time."""
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.process_time()


def processor_name() -> str:
    """The CPU as its maker calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or "CPU"
