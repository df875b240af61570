"""What the verbs that plan many runs have in common: their flags, and what they freeze."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.cli.backends import add_backend_flags, backend_of, cell_threads
from stoker.cli.flags import Parser, flag_values, say_note, with_own_code
from stoker.cli.train import packed
from stoker.errors import BadRequest, StokerError
from stoker.fleet.grid.cell import Plan
from stoker.fleet.grid.directory import Grid
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import ZERO_CONFIG, resolve
from stoker.study.frozen import keep_models, write_places
from stoker.study.launch import keep_threads, run_cells
from stoker.survive.stopping import StopRequest
from stoker.text import plural, say, shown
from stoker.train.attempt.launch import limit_time
from stoker.train.model.names import check_fine_tuning, check_model
from stoker.train.model.optimizer_names import check_optimizer

if TYPE_CHECKING:
    from stoker.data.dataset import Dataset


def add_study_flags(parser: Parser, out: str) -> list[argparse.Action]:
    """Add the flags that say where and how cells run; returns those of SLURM. `out` is the default
    of --out."""
    add = parser.add_argument
    add("--out", metavar="DIR", help=f"where the runs are kept [{out}]")
    add("--workers", type=int, default=1, metavar="N", help="cells at once [1]")
    add(
        "--compute-threads",
        type=int,
        default=0,
        metavar="N",
        help="threads of each cell on a CPU, on which its bits depend [as at the first start: "
        "cores divided by workers]",
    )
    add("--status", action="store_true", help="show the table and train nothing")
    add("--json", default="", metavar="FILE", help="also write all numbers")
    return add_backend_flags(parser)


def recipes_of(parsed: argparse.Namespace) -> Callable[[Mapping[str, Any]], Recipe]:
    """A function that returns the recipe of the flags with some other values. It raises BadRequest
    where that is none. What the first one changes beside its own keys is printed."""
    name, flags = parsed.recipe or ZERO_CONFIG, flag_values(parsed)
    notes: list[str] = []

    def recipe_with(values: Mapping[str, Any]) -> Recipe:
        resolved = resolve(name, {**flags, **values})
        recipe = with_own_code([resolved], parsed.trust_code)[0].recipe
        check_model(recipe)
        check_optimizer(recipe)
        check_fine_tuning(recipe)
        if not notes:
            say_note(resolved)
        notes.append(resolved.note)
        return recipe

    return recipe_with


@dataclass(frozen=True)
class StudyInputs:
    """What a study trains on and from, and where it is kept."""

    data: Path
    dataset: Dataset
    grid: Grid
    recipes: Sequence[Recipe]
    threads: int

    @classmethod
    def of(
        cls, parsed: argparse.Namespace, recipes: Sequence[Recipe], kind: str, stop: StopRequest
    ) -> StudyInputs:
        """The inputs that the flags name; by default, kept in a folder of this kind. A folder of
        images is packed first. Raises BadRequest."""
        limit_time(recipes[0], stop)
        data = data_of(parsed, recipes[0], stop)
        from stoker.data.dataset import Dataset

        name = Path(parsed.recipe or ZERO_CONFIG).stem
        place = f"{kind}/{data.resolve().name.removesuffix('-packed')}-{name}"
        grid = Grid(Path(parsed.out or place))
        threads = cell_threads(parsed, grid)
        dataset = Dataset(data)
        if dataset.eval_split is None:
            raise BadRequest(
                f"{shown(str(data))} has no images for an evaluation, and runs are compared by "
                "their accuracy: pack it again with --val-share 0.1"
            )
        return cls(data, dataset, grid, recipes, threads)

    def freeze(self, plan: Plan) -> str:
        """Write a plan, and all that its cells need; returns the plan's digest."""
        write_places(self.grid, self.data, self.dataset.fingerprint, self.recipes)
        keep_threads(self.grid, self.threads)
        keep_models(self.grid, self.recipes)
        return self.grid.freeze(plan)

    def run(self, plan: Plan, parsed: argparse.Namespace, verb: str, stop: StopRequest) -> int:
        """Run the cells of a plan where the flags say; returns the exit code. Raises BadRequest
        where the flags are wrong, StokerError where SLURM or the disk fails."""
        backend = backend_of(parsed, f"{verb}-{self.grid.path.name}", parsed.workers, self.threads)
        try:
            digest = self.freeze(plan)
            say(f"{verb} {self.grid.path}: {plural(len(plan.cells), 'cell')}")
            return run_cells(self.grid, plan, digest, backend, stop)
        except OSError as error:
            raise StokerError(
                f"cannot write to {shown(str(self.grid.path))}: {error.strerror or error}; "
                "finished cells are kept: free some space, then run the same command"
            ) from error


def data_of(parsed: argparse.Namespace, recipe: Recipe, stop: StopRequest) -> Path:
    """The packed set, which is made first where DATA is a folder of images. Raises BadRequest where
    there is none and nothing is to be made."""
    from stoker.data.dataset import Dataset  # here: wrong flags are answered without pyarrow
    from stoker.data.packing.pack import default_out

    if parsed.status and not Dataset.is_packed(parsed.data):
        out = default_out(parsed.data)
        if not Dataset.is_packed(out):
            raise BadRequest(f"{shown(parsed.data)} is not packed yet: nothing has been trained")
        return out
    return packed(parsed.data, recipe, stop)
