"""Shapes of today's decoders that share of work is reckoned for; none is built from them.

Sizes are those of litgpt's `config.py` at commit 2685705; GPT-2's are those of its preset here,
and Gemma 3 270M's, quoted from memory, give the 168 and 100 million parameters that Google names.
Vocabularies are as large as the matrices, padding included.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_WINDOW = 2**30  # positions: more than any sequence has


@dataclass(frozen=True)
class Decoder:
    """n_windowed layers see `window` positions, the others all before them."""

    name: str
    hidden_size: int
    n_layers: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    vocab_size: int
    n_ffn_products: int = 3  # two where the feed-forward network is not gated
    window: int = NO_WINDOW
    n_windowed: int = 0


def _windowed(window: int, n_windowed: int) -> dict[str, int]:
    return {"window": window, "n_windowed": n_windowed}


_PLAIN = {"n_ffn_products": 2}

DECODERS = (
    Decoder("GPT-2 small", 768, 12, 3072, 12, 12, 64, 50_257, **_PLAIN),
    Decoder("GPT-2 medium", 1024, 24, 4096, 16, 16, 64, 50_257, **_PLAIN),
    Decoder("GPT-2 large", 1280, 36, 5120, 20, 20, 64, 50_257, **_PLAIN),
    Decoder("GPT-2 XL", 1600, 48, 6400, 25, 25, 64, 50_257, **_PLAIN),
    Decoder("SmolLM2-135M", 576, 30, 1536, 9, 3, 64, 49_152),
    Decoder("Llama-2 7B", 4096, 32, 11_008, 32, 32, 128, 32_000),
    Decoder("Llama-3 8B", 4096, 32, 14_336, 32, 8, 128, 128_256),
    Decoder("Llama-3.2 1B", 2048, 16, 8192, 32, 8, 64, 128_256),
    Decoder("Llama-3.2 3B", 3072, 28, 8192, 24, 8, 128, 128_256),
    Decoder("Gemma 2B", 2048, 18, 16_384, 8, 1, 256, 256_000),
    Decoder("Gemma-2 2B", 2304, 26, 9216, 8, 4, 256, 256_000, **_windowed(4096, 13)),
    Decoder("Gemma-2 9B", 3584, 42, 14_336, 16, 8, 256, 256_000, **_windowed(4096, 21)),
    Decoder("Gemma-3 270M", 640, 18, 2048, 4, 1, 256, 262_144, **_windowed(512, 15)),
    Decoder("Gemma-3 1B", 1152, 26, 6912, 4, 1, 256, 262_144, **_windowed(512, 22)),
    Decoder("Gemma-3 4B", 2560, 34, 10_240, 8, 4, 256, 262_144, **_windowed(1024, 29)),
    Decoder("Qwen2.5 0.5B", 896, 24, 4864, 14, 2, 64, 151_936),
    Decoder("Qwen2.5 1.5B", 1536, 28, 8960, 12, 2, 128, 151_936),
    Decoder("Qwen2.5 3B", 2048, 36, 11_008, 16, 2, 128, 151_936),
    Decoder("Qwen2.5 7B", 3584, 28, 18_944, 28, 4, 128, 152_064),
    Decoder("Qwen3 0.6B", 1024, 28, 3072, 16, 8, 128, 151_936),
    Decoder("Qwen3 1.7B", 2048, 28, 6144, 16, 8, 128, 151_936),
    Decoder("Qwen3 4B", 2560, 36, 9728, 32, 8, 128, 151_936),
)
