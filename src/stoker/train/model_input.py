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
from stoker.train.mixing import Mix, apply_mix, partners
from stoker.train.model.build import Normalise
from stoker.train.passes import AMP_TYPES

MakeInput = Callable[[Tensor, Mix | None], Tensor]
"""(images as bytes, count x height x width x 3, on the device; how they are mixed) -> input"""


def input_maker(
    normalise: Normalise, device: torch.device, channels_last: bool, amp: str = "off"
) -> MakeInput:
    """The function that makes the input of a model on this device."""
    if device.type == "cuda":
        return FusedInput(normalise, device, channels_last, AMP_TYPES.get(amp, torch.float32))
    mean = torch.tensor(normalise.mean, device=device) * 255
    scale = 1 / (torch.tensor(normalise.std, device=device) * 255)

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


def normalised_and_mixed(
    images: Tensor, mean: Tensor, scale: Tensor, mix: tuple[Tensor, Tensor, Tensor | None] | None
) -> Tensor:
    """Images in 32-bit floats, count x height x width x 3. `mix`: partners, shares, boxes."""
    pixels = (images.float() - mean) * scale
    if mix is None:
        return pixels
    partner, share, boxes = mix
    other = (images[partner].float() - mean) * scale
    blended = torch.lerp(other, pixels, share[:, None, None, None])
    if boxes is None:
        return blended
    side = torch.arange(images.shape[1], device=images.device)
    left, top, right, bottom = (boxes[:, edge, None] for edge in range(4))
    across = (side >= left) & (side < right)
    down = (side >= top) & (side < bottom)
    inside = down[:, :, None, None] & across[:, None, :, None]
    is_cut = (right > left)[:, :, None, None]
    return torch.where(inside, other, torch.where(is_cut, pixels, blended))


class FusedInput:
    """Normalises, mixes, rounds and arranges images by one kernel, compiled at the first call."""

    def __init__(
        self,
        normalise: Normalise,
        device: torch.device,
        channels_last: bool,
        dtype: torch.dtype,
    ) -> None:
        self._mean = torch.tensor(normalise.mean, device=device) * 255
        self._scale = 1 / (torch.tensor(normalise.std, device=device) * 255)
        self._channels_last, self._dtype = channels_last, dtype
        # Any batch size and image size by the same kernel: phases do not compile it again.
        self._compiled = torch.compile(self.plain, dynamic=True, fullgraph=True)
        self.why_not_compiled = ""

    def plain(self, images: Tensor, mix: tuple[Tensor, Tensor, Tensor | None] | None) -> Tensor:
        """The input by separate kernels."""
        pixels = normalised_and_mixed(images, self._mean, self._scale, mix).to(self._dtype)
        planes = pixels.permute(0, 3, 1, 2)
        return planes if self._channels_last else planes.contiguous()

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
