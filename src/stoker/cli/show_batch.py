"""stoker show-batch DATA: a picture of one batch, exactly as the model sees it in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser, add_recipe_flags, resolve_flags
from stoker.errors import FINISHED
from stoker.survive.stopping import listening
from stoker.text import say, shown


def parser() -> Parser:
    flags = Parser(
        prog="stoker show-batch",
        usage="stoker show-batch DATA [--recipe NAME] [flags] --sheet FILE.png",
        description="Write a sheet of the images of one training batch, after crop, augmentation "
        "and mixing, with their classes. Accepts the flags of 'stoker train': the same ones show "
        "the batch of that run.",
        examples=(
            "stoker show-batch photos-packed --auto-augment trivial --sheet batch.png",
            "stoker show-batch photos-packed --recipe mine.toml --epoch 3 --sheet batch.png",
        ),
    )
    add = flags.add_argument
    add("data", metavar="DATA", help="a packed set, or a folder of images")
    add("--epoch", type=int, metavar="N", help="the epoch, counted from 0 [the run's first]")
    add("--step", type=int, default=0, metavar="N", help="which step of it, counted from 0 [0]")
    add("--sheet", default="batch.png", metavar="FILE", help="the PNG file [batch.png]")
    add_recipe_flags(flags, common=())
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    recipe = resolve_flags(parsed).recipe

    # Imported here, so that --help and wrong flags are answered without OpenCV and pyarrow.
    from stoker.cli.train import packed
    from stoker.data.dataset import Dataset
    from stoker.recipe.schedule import Timeline
    from stoker.show.sheet import check_sheet, write_sheet

    sheet = Path(parsed.sheet)
    check_sheet(sheet)
    with listening() as stop:
        dataset = Dataset(packed(parsed.data, recipe, stop))
    timeline = Timeline.of(recipe, len(dataset.split("train")))

    from stoker.show.batch import batch_line, choose_batch, load_batch, tiles_of

    batch = choose_batch(timeline, parsed.epoch, parsed.step)
    loaded = load_batch(dataset, recipe, timeline, batch)
    tiles = tiles_of(loaded, recipe, dataset.classes)
    write_sheet(sheet, tiles)
    say(batch_line(loaded, timeline, len(tiles), shown(str(sheet))))
    return FINISHED
