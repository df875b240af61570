"""Autocast of CUDA for tensors on the meta device, which PyTorch's own autocast leaves alone.

Invariants: products and convolutions take 16-bit copies of their inputs, and a weight is copied
once a pass. Softmax and the norms over channels are computed in 32 bits. Attention is computed as
its two explicit products, whatever the model calls, in every precision: the operations and the
memory of attention are counted alike for all models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from stoker.train.trials.device_memory import FLOAT32_ON_CUDA

IN_16_BITS = {
    *(functional.conv1d, functional.conv2d, functional.conv3d, functional.linear),
    *(functional.conv_transpose2d, torch.conv2d, torch.conv1d, torch.matmul, torch.bmm, torch.mm),
    *(torch.baddbmm, torch.addmm, torch.einsum, functional.multi_head_attention_forward),
    *(Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.bmm, Tensor.mm),
    *(Tensor.baddbmm, Tensor.addmm),
}
IN_32_BITS = {
    *FLOAT32_ON_CUDA,
    *(functional.cross_entropy, functional.log_softmax, functional.normalize, torch.norm),
    *(
        torch.exp,
        Tensor.exp,
        torch.pow,
        Tensor.pow,
        functional.softplus,
        functional.cosine_similarity,
    ),
}


class MetaAutocast(TorchFunctionMode):
    """Casts as autocast of CUDA does where `to_16_bits` is set, and makes attention explicit."""

    def __init__(self, to_16_bits: bool) -> None:
        super().__init__()
        self.to_16_bits = to_16_bits
        self.attention_bytes = 0
        """What explicit attention keeps for the backward pass of the whole batch, and a fused
        kernel does not."""
        self._copies: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if self.to_16_bits and func in IN_16_BITS:
            args, kwargs = tree_map(self._narrow, (args, kwargs))
        elif self.to_16_bits and func in IN_32_BITS:
            args = tree_map(widened, args)
        return func(*args, **kwargs)

    def _narrow(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if not isinstance(value, nn.Parameter):
            return value.half()
        if id(value) not in self._copies:
            self._copies[id(value)] = value.half()
        return self._copies[id(value)]

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *_: Any,
        scale: float | None = None,
        **__: Any,
    ) -> Tensor:
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        query, key, value = tree_map(self._narrow if self.to_16_bits else same, (query, key, value))
        weights = (query * factor) @ key.transpose(-2, -1)
        if attn_mask is not None:
            weights = weights + attn_mask
        weights = functional.softmax(weights.float(), -1)
        self.attention_bytes += weights.numel() * (6 if self.to_16_bits else 4)
        return weights.to(value.dtype) @ value


def widened(value: Any) -> Any:
    is_narrow = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_narrow else value


def same(value: Any) -> Any:
    return value
