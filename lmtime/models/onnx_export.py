"""An encoder as an ONNX file, and that file as a callable on ONNX Runtime.

The graph is written here operator by operator: torch's exporter traces for half a minute where
this takes a second, and leaves slices and checks in each layer that this graph does not need.
Batch and sequence are free axes. onnx and onnxruntime are the extra `export`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lmtime.errors import UsageError
from lmtime.models.encoder import Encoder, Layer
from lmtime.records import replaced

OPSET, IR_VERSION = 17, 8  # the first opset with LayerNormalization
INPUTS = ("tokens", "mask", "token_types")  # those that a file has, in this order
_AXES = ["batch", "sequence"]


def export_onnx(encoder: Encoder, path: str | Path, *, with_mask: bool = True) -> None:
    """Write tokens, mask and, where it has them, token_types -> logits, wholly or not at all.

    tokens, mask, token_types: (batch, sequence) int64 of any batch and of any length up to the
    encoder's positions. with_mask=False: for batches that hold no padding.
    """
    onnx = _imported("onnx")
    model = _Graph(onnx, encoder, with_mask).model()
    with replaced(Path(path)) as partial:
        onnx.save_model(model, partial)


class OnnxEncoder:
    """`logits = encoder(tokens, mask, token_types)` of an ONNX file, on CPU threads.

    Inputs are (batch, seq_len) int64 of torch or numpy, absent ones as for `Encoder`; the logits
    are numpy's, (batch, n_classes).
    """

    def __init__(self, path: str | Path, n_threads: int = 1) -> None:
        runtime = _imported("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = n_threads, 1
        options.log_severity_level = 3  # errors only
        # Threads of one session would else spin into the calls of the next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if not Path(path).is_file():
            raise UsageError(f"there is no file {path}: write it with export_onnx")
        self._errors = _runtime_errors(runtime)
        try:
            self._session = runtime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except self._errors as error:
            raise UsageError(f"{path} is no ONNX model ({_first_line(error)}): export it") from None
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        if self.inputs[:1] != INPUTS[:1] or not set(self.inputs) <= set(INPUTS):
            raise UsageError(f"{path} takes {', '.join(self.inputs)}: it is no encoder of ours")

    def __call__(
        self,
        tokens: Tensor | np.ndarray,
        mask: Tensor | np.ndarray | None = None,
        token_types: Tensor | np.ndarray | None = None,
    ) -> np.ndarray:
        given = dict(zip(INPUTS, (tokens, mask, token_types), strict=True))
        unwanted = [n for n, v in given.items() if v is not None and n not in self.inputs]
        if unwanted:
            raise UsageError(f"this file was exported without {unwanted[0]}: do not pass any")
        arrays = {n: np.asarray(v, dtype=np.int64) for n, v in given.items() if v is not None}
        shape = arrays["tokens"].shape
        absent = {"mask": np.ones, "token_types": np.zeros}
        for name in self.inputs:
            if name not in arrays:
                arrays[name] = absent[name](shape, dtype=np.int64)
            if arrays[name].shape != shape or len(shape) != 2:
                raise UsageError(
                    f"{name} of shape {arrays[name].shape}: all inputs are (batch, seq_len)"
                )
        try:
            return self._session.run(None, arrays)[0]
        except self._errors as error:
            raise UsageError(
                f"tokens of shape {shape} do not fit this encoder ({_first_line(error)})"
            ) from None


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f"{name} is not installed: run `pip install 'lmtime[export]'`") from None


def _runtime_errors(runtime: ModuleType) -> tuple[type[Exception], ...]:
    """All that onnxruntime raises: its exceptions share no base but Exception."""
    state = runtime.capi.onnxruntime_pybind11_state
    return tuple(
        e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception)
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


class _Graph:
    """An encoder's operators, added one by one; each gives the name of its output."""

    def __init__(self, onnx: ModuleType, encoder: Encoder, with_mask: bool) -> None:
        self._onnx, self._encoder = onnx, encoder
        self._has = ["tokens"] + ["mask"] * with_mask
        self._has += ["token_types"] * (encoder.token_types is not None)
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def model(self) -> Any:
        """The ONNX model of the whole encoder."""
        logits = self._logits()
        self._nodes.append(self._onnx.helper.make_node("Identity", [logits], ["logits"]))
        kinds, describe = self._onnx.TensorProto, self._onnx.helper.make_tensor_value_info
        inputs = [describe(name, kinds.INT64, _AXES) for name in self._has]
        n_classes = self._encoder.config.n_classes
        outputs = [describe("logits", kinds.FLOAT, [_AXES[0], n_classes])]
        graph = self._onnx.helper.make_graph(
            self._nodes, "encoder", inputs, outputs, list(self._constants.values())
        )
        opset = self._onnx.helper.make_opsetid("", OPSET)
        return self._onnx.helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="lmtime"
        )

    def _logits(self) -> str:
        encoder = self._encoder
        hidden = self._embedded()
        seen = self._mask() if "mask" in self._has else None
        for i, layer in enumerate(encoder.layers):
            hidden = self._layer(hidden, seen, layer, f"layers.{i}")
        first = self._add("Gather", hidden, self._constant("first", np.int64(0)), axis=1)
        if encoder.pooler is not None:
            first = self._add("Tanh", self._linear(first, encoder.pooler, "pooler"))
        return self._linear(first, encoder.classifier, "classifier")

    def _embedded(self) -> str:
        encoder = self._encoder
        length = self._add("Shape", "tokens", start=1, end=2)
        zero = self._constant("zero", np.zeros(1, dtype=np.int64))
        table = self._weight("positions", encoder.positions.weight)
        positions = self._add("Slice", table, zero, length, zero)
        hidden = self._add("Gather", self._weight("words", encoder.words.weight), "tokens")
        hidden = self._add("Add", hidden, positions)
        if encoder.token_types is not None:
            table = self._weight("token_types.weight", encoder.token_types.weight)
            hidden = self._add("Add", hidden, self._add("Gather", table, "token_types"))
        return self._norm(hidden, encoder.norm, "norm")

    def _mask(self) -> str:
        """What is added to scores: 0 where there is a token, else all but minus infinity."""
        seen = self._add("Cast", "mask", to=self._onnx.TensorProto.BOOL)
        seen = self._add("Unsqueeze", seen, self._constant("axes", np.array([1, 2])))
        nothing = self._constant("nothing", np.float32(0))
        never = self._constant("never", np.finfo(np.float32).min)
        return self._add("Where", seen, nothing, never)

    def _layer(self, hidden: str, seen: str | None, layer: Layer, name: str) -> str:
        context = self._context(hidden, seen, layer, name)
        added = self._linear(context, layer.attention_output, f"{name}.attention_output")
        hidden = self._add("Add", hidden, added)
        hidden = self._norm(hidden, layer.attention_norm, f"{name}.attention_norm")
        inner = self._linear(hidden, layer.intermediate, f"{name}.intermediate")
        added = self._linear(self._gelu(inner), layer.output, f"{name}.output")
        return self._norm(self._add("Add", hidden, added), layer.output_norm, f"{name}.output_norm")

    def _context(self, hidden: str, seen: str | None, layer: Layer, name: str) -> str:
        """What the heads gather, (batch, sequence, heads x head_size)."""
        size = layer.head_size
        split = self._constant(f"heads of {size}", np.array([0, 0, -1, size]))
        parts = []
        for part, order in (
            ("query", (0, 2, 1, 3)),
            ("key", (0, 2, 3, 1)),
            ("value", (0, 2, 1, 3)),
        ):
            x = self._linear(hidden, getattr(layer, part), f"{name}.{part}")
            parts.append(self._add("Transpose", self._add("Reshape", x, split), perm=order))
        query, key, value = parts
        scores = self._add("MatMul", query, key)
        scores = self._add("Div", scores, self._constant(f"root of {size}", np.float32(size**0.5)))
        if seen is not None:
            scores = self._add("Add", scores, seen)
        context = self._add("MatMul", self._add("Softmax", scores, axis=-1), value)
        context = self._add("Transpose", context, perm=(0, 2, 1, 3))
        return self._add("Reshape", context, self._constant("joined", np.array([0, 0, -1])))

    def _gelu(self, x: str) -> str:
        """x / 2 * (1 + erf(x / sqrt 2)), in the form that ONNX Runtime makes one operator of."""
        root, one, half = (
            self._constant(f"{value:.3f}", np.float32(value)) for value in (2**0.5, 1.0, 0.5)
        )
        cumulated = self._add("Add", self._add("Erf", self._add("Div", x, root)), one)
        return self._add("Mul", self._add("Mul", x, cumulated), half)

    def _linear(self, x: str, linear: nn.Linear, name: str) -> str:
        weight = self._weight(f"{name}.weight", linear.weight.T)
        product = self._add("MatMul", x, weight)
        return self._add("Add", product, self._weight(f"{name}.bias", linear.bias))

    def _norm(self, x: str, norm: nn.LayerNorm, name: str) -> str:
        weight = self._weight(f"{name}.weight", norm.weight)
        bias = self._weight(f"{name}.bias", norm.bias)
        return self._add("LayerNormalization", x, weight, bias, axis=-1, epsilon=norm.eps)

    def _add(self, operator: str, *inputs: str, **attributes: object) -> str:
        output = f"{operator}_{len(self._nodes)}"
        node = self._onnx.helper.make_node(operator, inputs, [output], output, **attributes)
        self._nodes.append(node)
        return output

    def _weight(self, name: str, value: Tensor) -> str:
        return self._constant(name, value.detach().to("cpu", torch.float32).contiguous().numpy())

    def _constant(self, name: str, value: np.ndarray | np.generic) -> str:
        if name not in self._constants:
            self._constants[name] = self._onnx.numpy_helper.from_array(np.asarray(value), name)
        return name
