"""Pre-trained weights: from this machine's cache, else from where timm downloads them.

Invariants: weights in the cache are loaded without a connection. Where a download is needed and its
host cannot be reached, the answer comes within seconds; the libraries would try for a minute.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from stoker.errors import BadRequest
from stoker.survive.watchdog import bounded

LIMIT_S = 3.0
"""Seconds within which a host must answer."""


def weights_file(name: str) -> str | None:
    """The file of a model's pre-trained weights on this machine; None where it is not here."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    config = timm.get_pretrained_cfg(name)
    if config is None:
        return None
    if config.hf_hub_id:
        repository, _, revision = config.hf_hub_id.partition("@")
        file = config.hf_hub_filename or "model.safetensors"
        path = try_to_load_from_cache(repository, file, revision=revision or None)
        return path if isinstance(path, str) else None
    path = Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(config.url or "").path).name)
    return str(path) if path.is_file() else None


def cached_weights(name: str) -> str | None:
    """The file of a model's pre-trained weights that timm is to load; None where timm has to look
    for them. Raises BadRequest where the model has none, or no host to download them from answers.
    """
    import timm
    from huggingface_hub import constants

    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise BadRequest(f"{name} has no pre-trained weights: drop --pretrained")
    file, place = weights_file(name), constants.ENDPOINT if config.hf_hub_id else config.url or ""
    if file and (not config.hf_hub_id or file.endswith(".safetensors")):
        return file if config.hf_hub_id else None
    offline = config.hf_hub_id and constants.HF_HUB_OFFLINE
    if reason := "HF_HUB_OFFLINE is set" if offline else no_answer(place):
        raise BadRequest(
            f"the pre-trained weights of {name} are not on this machine, and "
            f"{urlsplit(place).hostname} cannot be reached ({reason}): drop --pretrained, or "
            f"download them where there is a connection and copy {constants.HF_HUB_CACHE}"
        )
    return None


def no_answer(url: str) -> str:
    """Why the host of a URL does not answer, asked through the proxy if any; empty if it does."""
    reasons = [f"no answer in {LIMIT_S:g} s"]

    def ask() -> None:
        try:
            with suppress(urllib.error.HTTPError):  # an answer, whatever it is
                request: Any = urllib.request.Request(url, method="HEAD")
                urllib.request.build_opener().open(request, timeout=LIMIT_S).close()
            reasons.append("")
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", error)
            reasons.append(getattr(cause, "strerror", None) or str(cause))

    bounded(ask, LIMIT_S)
    return reasons[-1]
