"""Runs where SkyPilot is installed: what it makes of task files, as JSON.

python tests/integration/sky_tasks.py FILE ...
"""

import json
import sys

import sky

KEPT = ("name", "resources", "file_mounts", "setup", "run", "secrets")

if __name__ == "__main__":
    tasks = [sky.Task.from_yaml(file).to_yaml_config() for file in sys.argv[1:]]
    kept = [{key: task.get(key) for key in KEPT} for task in tasks]
    print(json.dumps(kept))
