"""Where a training stands, so that one that was interrupted ends as if it had not been.

One safetensors file: weights, the optimizer's state, and the rest as JSON in its header. It is
replaced whole, so that the three always belong together. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lmtime.errors import UsageError
from lmtime.records import replaced


@dataclass
class Progress:
    """Epochs and steps that are done, the mean loss of each epoch, seconds that all took."""

    epochs: int = 0
    steps: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads


@dataclass(frozen=True)
class Checkpoint:
    """of: what is trained, in words that change with it: another training starts anew."""

    path: Path
    of: str

    def load(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Put network and optimizer where they were; as they are, where nothing was kept."""
        if not self.path.exists():
            return Progress()
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("of") != self.of:
                    return Progress()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UsageError(f"{self.path} is damaged ({error}): delete it") from None
        _fill(network, optimizer, tensors)
        return Progress(**json.loads(metadata["progress"]))

    def save(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
    ) -> None:
        """Replace what was kept."""
        tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
        for name, parameter in network.named_parameters():
            for key, value in optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        metadata = {"of": self.of, "progress": json.dumps(dataclasses.asdict(progress))}
        with replaced(self.path) as partial:
            save_file({n: v.contiguous() for n, v in tensors.items()}, partial, metadata=metadata)


def _fill(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    kind = "network."
    network.load_state_dict(
        {name.removeprefix(kind): v for name, v in tensors.items() if name.startswith(kind)}
    )
    parameters = dict(network.named_parameters())
    for name, value in tensors.items():
        kind, key, *rest = name.split(".", 2)
        if kind == "optimizer":
            optimizer.state[parameters[rest[0]]][key] = value
