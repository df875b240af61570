"""Stoker's loader for a training loop of the user's own: torch tensors, in one line.

    for images, labels in stoker.Loader("photos-packed"): ...

Invariants: a batch depends on (set, seed, position) alone, not on ranks, threads, or how often the
loop was killed. The position is one integer, the number of samples that all ranks together have
taken, and it counts a batch as soon as it is handed out. A tensor that was handed out is never
written again. In training every batch has `batch_size` images; evaluation shows each image once,
and all ranks get the same number of batches, so none waits for another.

torch is imported with the first batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.data.dataset import Dataset
from stoker.data.images.pixel_ops import IMAGENET_MEAN, IMAGENET_STD
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, Ints, Loaded, LoaderOptions
from stoker.data.loading.memory import LoaderMemory, fit_prefetch
from stoker.data.loading.order import Arrangement, InOrder, Order, lanes_for
from stoker.errors import BadRequest
from stoker.host.limits import allowed_memory, usable_cores, usable_memory
from stoker.recipe.schedule import Batch
from stoker.text import plural

if TYPE_CHECKING:
    from torch import Tensor

BYTES = {"float32": 4, "uint8": 1}
"""The types of images, and the bytes of a number."""
LEAST = {"batch_size": 1, "image_size": 1, "position": 0, "prefetch": 1, "threads": 0}
FORMAT = 1
"""Format number of a saved state."""

Planned = list[tuple[Batch, int]]
"""Batches, each with the position after it."""


class Planes:
    """Makes the tensors of a batch. It does not know the loader, so that a loader which is dropped
    is freed at once, with its threads."""

    def __init__(self, dtype: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self._dtype = dtype
        # In the order of operations that training uses, so that the bits are the same.
        self.offset = np.asarray(mean, np.float32) * np.float32(255)
        self.scale = np.float32(1) / (np.asarray(std, np.float32) * np.float32(255))

    def room(self, batch: Batch, samples: Ints, epochs: Ints) -> Tensor:
        """New memory for the images of a batch: pinned where there is a GPU to copy it to."""
        import torch

        shape = (len(samples), 3, batch.image_size, batch.image_size)
        dtype = getattr(torch, self._dtype)
        return torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_available())

    def fill(self, loaded: Loaded, start: int, stop: int) -> None:
        """Normalise some images of a batch and arrange their colours as planes, in the thread that
        decoded them: they are still in its cache."""
        planes = loaded.drawn.numpy()[start:stop]
        for colour in range(3):
            pixels, plane = loaded.images[start:stop, :, :, colour], planes[:, colour]
            if self._dtype == "uint8":
                np.copyto(plane, pixels)
            else:
                np.subtract(pixels, self.offset[colour], out=plane)
                np.multiply(plane, self.scale[colour], out=plane)


@dataclass(eq=False)
class Loader:
    """Batches of a packed set as (images, labels): NCHW tensors and int64 numbers of classes. One
    `for` is one epoch; the next one is the next epoch. Raises BadRequest for what cannot be loaded,
    StokerError for a damaged set."""

    data: str | os.PathLike[str]
    """A packed set."""
    split: str = "train"
    batch_size: int = 256
    """Images of all ranks together."""
    image_size: int = 224
    _: KW_ONLY
    dtype: Any = "float32"
    """`float32`: normalised with `mean` and `std`; `uint8`: pixels, for the device to normalise."""
    position: int = 0
    """Samples that all ranks together have taken since the first epoch began."""
    seed: int = 0
    train: bool | None = None
    """Shuffled, and cropped and mirrored at random. None: for the split `train`."""
    crop_scale: float = 0.25
    """Smallest area of a random crop, as a fraction."""
    crop_pct: float = 0.875
    """Fraction of the shorter side that a centre crop shows."""
    hflip: bool = True
    """Mirror half of the training images."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    rank: int | None = None
    """Which part of each batch this process gets. None: as torch.distributed or RANK says."""
    world_size: int | None = None
    threads: int = 0
    """Decoding threads; 0: the cores of this machine, shared by its ranks."""
    prefetch: int = 3
    """Batches that are made ahead, as far as memory allows."""

    def __post_init__(self) -> None:
        self.dataset = Dataset(self.data)
        self._index = self.dataset.split(self.split)
        self.dtype = str(self.dtype).removeprefix("torch.")
        self.train = self.split == "train" if self.train is None else self.train
        self._check()
        self._lanes = lanes_for(self.samples, [self.batch_size])
        self._loader: BatchLoader | None = None
        self._ranks = (0, 1)
        self._planes = Planes(self.dtype, self.mean, self.std)

    def _check(self) -> None:
        """Raise BadRequest for a value that no loader can have."""
        if self.dtype not in BYTES:
            raise BadRequest(f"dtype is one of {', '.join(BYTES)}, not {self.dtype!r}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise BadRequest(f"{name} must be a whole number from {least}, not {value!r}")
        if not 0 < self.crop_scale <= 1 or not 0 < self.crop_pct <= 1:
            raise BadRequest("crop_scale and crop_pct must be above 0 and at most 1")
        if len(self.mean) != 3 or len(self.std) != 3 or 0 in self.std:
            raise BadRequest("mean and std have a number for each of red, green and blue")
        if self.samples < (self.batch_size if self.train else 1):
            raise BadRequest(
                f"the split '{self.split}' has {plural(self.samples, 'image')}, less than a batch "
                f"of {self.batch_size}: lower batch_size"
            )

    @property
    def samples(self) -> int:
        """Images in the split."""
        return len(self._index)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by number."""
        return self.dataset.classes

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counting from 0."""
        return self.position // self.samples

    def epochs(self, total: int) -> range:
        """The epochs that are left of so many: first the one that a resumed loop is in."""
        return range(self.epoch, total)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        if self.train:
            return self.samples // self.batch_size
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The rest of the epoch. After a loop that ended early the next one goes on behind its last
        batch; evaluation begins again. Raises StokerError for a damaged shard or image."""
        rank, world = rank_and_world(self.rank, self.world_size)
        plan = self._training(world) if self.train else self._evaluation(rank, world)
        ends = [end for _, end in plan]
        batches = self._open(rank, world).batches(batch for batch, _ in plan)
        try:
            for loaded, end in zip(batches, ends, strict=True):
                self.position = end
                yield self._tensors(loaded)
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _training(self, world: int) -> Planned:
        """The whole batches that are left of the epoch. The rest, less than a batch, is left out:
        each epoch has another order, so these are other images each time."""
        if self.batch_size < 2 * world:
            raise BadRequest(
                f"batch_size = {self.batch_size} is the batch of {world} ranks together, which "
                "need 2 images each: raise it"
            )
        size, end = self.batch_size, (self.epoch + 1) * self.samples
        starts = range(self.position, end - size + 1, size)
        if not starts:
            self.position = end
        return [
            (
                Batch(number, start, size, self.image_size),
                start + size if start < starts[-1] else end,
            )
            for number, start in enumerate(starts)
        ]

    def _evaluation(self, rank: int, world: int) -> Planned:
        """This rank's part of batches of nearly equal size."""
        self.position, total, plan = 0, len(self), []
        edges = [self.samples * number // total for number in range(total + 1)]
        for number, (begin, end) in enumerate(pairwise(edges)):
            first, last = (begin + (end - begin) * part // world for part in (rank, rank + 1))
            plan.append((Batch(number, first, last - first, self.image_size), end))
        return plan

    def _open(self, rank: int, world: int) -> BatchLoader:
        """The loader of this rank's part; a new one where the ranks have changed."""
        if self._loader is not None and self._ranks == (rank, world):
            return self._loader
        self.close()
        self._ranks, here = (rank, world), max(number_of("LOCAL_WORLD_SIZE") or 1, 1)
        threads = self.threads or max(1, usable_cores() // here)
        numbers = -(-self.batch_size // world) * self.image_size**2 * 3
        memory = LoaderMemory(numbers * (1 + BYTES[self.dtype]), threads, sum(self._index.largest))
        allowed_bytes = allowed_memory(0.0, usable_memory(), here)
        prefetch, _ = fit_prefetch([memory], self.prefetch, allowed_bytes)
        options = LoaderOptions(draw=self._planes.room, finish=self._planes.fill)
        order: Arrangement = InOrder()
        view, part = View(crop_pct=self.crop_pct), {}
        if self.train:
            fingerprint = self.dataset.fingerprint
            order = Order(self._index.shard_sizes, fingerprint, self.seed, self._lanes)
            view = View("resized", self.crop_scale, hflip=self.hflip, seed=self.seed)
            part = {"rank": rank, "world": world}
        self._loader = BatchLoader(
            self._index, order, view, threads=threads, prefetch=prefetch, options=options, **part
        )
        return self._loader

    def _tensors(self, loaded: Loaded) -> tuple[Tensor, Tensor]:
        import torch

        labels = torch.from_numpy(loaded.labels.astype(np.int64, copy=False))
        return loaded.drawn, labels

    def normalised(self, images: Tensor) -> Tensor:
        """Images of `uint8`, on any device, as `float32` would have them."""
        import torch

        numbers = (self._planes.offset, self._planes.scale)
        offset, scale = (torch.from_numpy(n).to(images.device).view(1, 3, 1, 1) for n in numbers)
        return images.float().sub_(offset).mul_(scale)

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it belongs to: plain numbers and text."""
        return {
            "format": FORMAT,
            "position": self.position,
            "lanes": self._lanes,
            "seed": self.seed,
            "split": self.split,
            "fingerprint": self.dataset.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a saved position, also with another batch size or number of ranks. Raises
        BadRequest for a state of other images or of another seed."""
        own = self.state_dict()
        if state.get("format") != FORMAT:
            raise BadRequest(f"a state of format {state.get('format')!r} is not one of this loader")
        for name in ("fingerprint", "split", "seed"):
            if state.get(name) != own[name]:
                raise BadRequest(
                    f"the state is one of another {name} ({state.get(name)!r}) than this loader's "
                    f"({own[name]!r}): begin again at position 0"
                )
        numbers = state.get("position"), state.get("lanes")
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise BadRequest("the state has no position")
        self.close()
        self.position, self._lanes = int(state["position"]), max(int(state["lanes"]), 1)

    def close(self) -> None:
        """End the threads. The next epoch starts new ones."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def number_of(variable: str) -> int | None:
    """A number in the environment; None where there is none. Raises BadRequest for other text."""
    text = os.environ.get(variable, "")
    if text and not text.isdecimal():
        raise BadRequest(f"{variable}={text!r} is not a number: unset it")
    return int(text) if text else None


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """This process among the ranks: as given, else as torch.distributed says, else the environment.
    Raises BadRequest where that is contradictory."""
    if (rank is None) != (world is None):
        raise BadRequest("give both rank and world_size, or neither")
    if rank is None or world is None:
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            rank, world = distributed.get_rank(), distributed.get_world_size()
        else:
            rank, world = number_of("RANK"), number_of("WORLD_SIZE") or 1
            if rank is None and world > 1:
                raise BadRequest(
                    f"WORLD_SIZE={world}, but RANK is not set: initialise torch.distributed before "
                    "the first batch, or give rank and world_size"
                )
    rank = rank or 0
    if not 0 <= rank < world:
        raise BadRequest(f"rank {rank} is not one of {plural(world, 'rank')}")
    return rank, world
