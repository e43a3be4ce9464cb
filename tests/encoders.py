"""Small encoders that tests share."""

import torch

from lmtime.config import EncoderConfig
from lmtime.models.encoder import Encoder

SMALL = EncoderConfig(
    hidden_size=12, head_size=5, heads=(4, 3, 2), ffn_sizes=(17, 9, 23), vocab_size=50,
    max_positions=16, n_classes=3,
)  # fmt: skip


def random_encoder(seed=0, dtype=torch.float64, config=SMALL):
    """Weights far from 0 and biases too: a wrong slice of BERT's small ones changes little."""
    torch.manual_seed(seed)
    encoder = Encoder(config).to(dtype).eval()
    with torch.no_grad():
        for value in encoder.parameters():
            value.normal_(std=0.4)
    return encoder
