"""One rank of an evaluation: python evaluate_rank.py DATA CHECKPOINT BATCH_SIZE, under RANK etc."""

from __future__ import annotations

import sys
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder
from stoker.recipe.recipe import Recipe
from stoker.survive.checkpoint import read_checkpoint
from stoker.train.evaluate import Evaluator
from stoker.train.model.build import build_model
from stoker.train.model_input import input_maker
from stoker.train.process_group import Ranks

ranks = Ranks.join()
dataset = Dataset(sys.argv[1])
snapshot = read_checkpoint(Path(sys.argv[2]))
model, normalise = build_model(Recipe(model=snapshot.facts["model"]), len(dataset.classes))
model.load_state_dict(snapshot.weights)
loader = BatchLoader(dataset.split("val"), InOrder(), View(crop_pct=0.875))
evaluator = Evaluator(loader, ranks, batch_size=int(sys.argv[3]))
size = snapshot.facts["input"]["image_size"]
accuracy = evaluator.run(model, size, input_maker(normalise, ranks.device, channels_last=True))
assert accuracy is not None
if ranks.first:
    print(accuracy.images, accuracy.top1, accuracy.top5, flush=True)
loader.close()
ranks.leave()
