"""Forward passes of sub-networks, ready to be timed: in torch, and in ONNX Runtime on the CPU.

Latency does not depend on the weights: they are random.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from lmtime.config.encoder import EncoderConfig, SubNetwork
from lmtime.errors import UsageError, unknown
from lmtime.models.encoder import Encoder, cut
from lmtime.models.onnx_export import OnnxEncoder, export_onnx
from lmtime.timing.timer import Step


def tokens_of(config: EncoderConfig, batch_size: int, seq_len: int, seed: int = 0) -> Tensor:
    """Random tokens without padding, (batch_size, seq_len)."""
    if not 1 <= seq_len <= config.max_positions:
        raise UsageError(
            f"seq_len={seq_len}: an encoder of {config.max_positions} positions takes from 1 to "
            f"{config.max_positions} tokens"
        )
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (batch_size, seq_len), generator=generator)


def held_bytes(config: EncoderConfig, wanted: Iterable[tuple[str, SubNetwork]]) -> int:
    """What the weights of `encoder_calls` take: those that are copied for each, and the network's.

    A call in torch shares the embeddings with the network, and layers of full width too.
    """
    held = config.parameters
    for engine, sub in wanted:
        part = sub.config(config)
        if engine != "torch":
            held += part.parameters
        elif not _is_shared(config, sub):
            held += part.encoder_parameters
    return 4 * held


def encoder_calls(
    config: EncoderConfig,
    wanted: Iterable[tuple[str, SubNetwork]],
    tokens: Tensor,
    device: str,
    seed: int = 0,
) -> list[Step]:
    """One forward pass for each (engine, sub-network) of a network, on torch's threads."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        full = Encoder(config).eval()
    makers = {"torch": _torch_call, "onnxruntime": _onnx_call}
    calls = []
    for engine, sub in wanted:
        if engine not in makers:
            raise unknown("engine", engine, list(makers))
        calls.append(makers[engine](full, sub, tokens, device))
    return calls


def _is_shared(full: EncoderConfig, sub: SubNetwork) -> bool:
    """Whether each of its layers has the full width, so that nothing is to be cut."""
    widths = [(full.heads[i], full.ffn_sizes[i]) for i in sub.layers]
    return widths == list(zip(sub.heads, sub.ffn_sizes, strict=True))


def _torch_call(full: Encoder, sub: SubNetwork, tokens: Tensor, device: str) -> Step:
    """Layers of full width are shared with the full network; narrower ones are cut out of it."""
    full, on_device = full.to(device), tokens.to(device)
    if _is_shared(full.config, sub):
        encoder, part = full, sub
    else:
        encoder, part = cut(full, sub), None
        for name in ("words", "positions", "token_types"):
            setattr(encoder, name, getattr(full, name))

    def call() -> Tensor:
        with torch.inference_mode():
            return encoder(on_device, sub=part)

    return call


def _onnx_call(full: Encoder, sub: SubNetwork, tokens: Tensor, device: str) -> Step:
    """The file is exported, read and deleted; without a mask, as torch's call has none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(cut(full, sub), path, with_mask=False)
        encoder = OnnxEncoder(path, torch.get_num_threads())
    array = tokens.numpy()
    return lambda: encoder(array)
