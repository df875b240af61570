"""The bytes of a batch become the model's input: normalised and mixed.

Invariants: on a CPU the input is the plain formula's, bit for bit. On a GPU one compiled kernel
reads bytes and writes the input in the precision of the recipe: the arithmetic is in 32 bits, and
each number is rounded once, at the end. Where a kernel cannot be compiled, the same function runs
uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from stoker.host.out_of_memory import is_out_of_memory
from stoker.train.mixing import Mix, apply_mix, blend, partners
from stoker.train.model.build import Normalise
from stoker.train.passes import AMP_TYPES

MakeInput = Callable[[Tensor, Mix | None], Tensor]
"""(images as bytes, count x height x width x 3, on the device; how they are mixed) -> input"""


def mean_and_scale(normalise: Normalise, device: torch.device) -> tuple[Tensor, Tensor]:
    """For bytes: what is subtracted from each colour, and what the rest is multiplied by."""
    mean, std = (
        torch.tensor(numbers, device=device) for numbers in (normalise.mean, normalise.std)
    )
    return mean * 255, 1 / (std * 255)


def input_maker(
    normalise: Normalise, device: torch.device, channels_last: bool, amp: str = "off"
) -> MakeInput:
    """The function that makes the input of a model on this device."""
    if device.type == "cuda":
        return FusedInput(normalise, device, channels_last, AMP_TYPES.get(amp, torch.float32))
    mean, scale = mean_and_scale(normalise, device)

    @cache
    def repeated(width: int) -> tuple[Tensor, Tensor]:
        return mean.repeat(width), scale.repeat(width)

    def planes(images: Tensor, mix: Mix | None = None) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).contiguous().float()
        return apply_mix(mix, pixels.sub_(mean[:, None, None]).mul_(scale[:, None, None]))

    def interleaved(images: Tensor, mix: Mix | None = None) -> Tensor:
        pixels = images.float()
        # Whole rows at once: three numbers at a time take a CPU four times as long.
        count, height, width, colours = pixels.shape
        row_mean, row_scale = repeated(width)
        pixels.view(count, height, width * colours).sub_(row_mean).mul_(row_scale)
        return apply_mix(mix, pixels.permute(0, 3, 1, 2))

    return interleaved if channels_last else planes


class FusedInput:
    """Normalises, mixes, rounds and arranges images by one kernel, compiled at the first call."""

    def __init__(
        self,
        normalise: Normalise,
        device: torch.device,
        channels_last: bool,
        dtype: torch.dtype,
    ) -> None:
        self._mean, self._scale = mean_and_scale(normalise, device)
        self._channels_last, self._dtype = channels_last, dtype
        # Any batch size and image size by the same kernel: phases do not compile it again.
        self._compiled = torch.compile(self.plain, dynamic=True, fullgraph=True)
        self.why_not_compiled = ""

    def plain(self, images: Tensor, mix: tuple[Tensor, Tensor, Tensor | None] | None) -> Tensor:
        """The input by separate kernels. `mix`: partners, shares, boxes."""
        planes = ((images.float() - self._mean) * self._scale).permute(0, 3, 1, 2)
        if mix is not None:
            partner, share, boxes = mix
            planes = blend(planes, partner, Mix(share, boxes))
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        return planes.to(self._dtype).contiguous(memory_format=layout)

    @torch.no_grad()  # always, so that training and evaluation share a kernel
    def __call__(self, images: Tensor, mix: Mix | None = None) -> Tensor:
        numbers = None
        if mix is not None:
            numbers = (partners(len(images), images.device), mix.share, mix.boxes)
        if not self.why_not_compiled:
            try:
                made: Tensor = self._compiled(images, numbers)
                return made
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                # No compiler for kernels on this machine, or one that fails: slower, not wrong.
                self.why_not_compiled = f"{type(error).__name__}: {error}"
        return self.plain(images, numbers)
