"""Model files: read without ever executing a pickle, written whole or not at all."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from polycert.errors import PolycertError
from polycert.forms import Shape
from polycert.graph import Network, capture
from polycert.models import Architecture, build

Weights = dict[str, Tensor]


class ModelFile(NamedTuple):
    """A module in evaluation mode, the shape of its inputs, and what its file says of it."""

    module: nn.Module
    input_shape: Shape
    about: dict[str, Any]


def load(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> Network:
    """A network from a file.

    Args:
        path: `.safetensors` with its architecture (see `save`); `.npz` with its entry in an `index.json` beside or
            above it; or a factory `package.module:function` that returns a module, or (module, input shape).
        weights: for a factory: `.safetensors`, `.npz`, or a `.pt` state dict (read with `weights_only`).
    """
    found = load_module(path, weights)
    return capture(found.module, found.input_shape)


def load_module(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> ModelFile:
    """As `load`, but the module itself."""
    text = os.fspath(path)
    suffix = Path(text).suffix
    if suffix in _READERS:
        if weights is not None:
            raise PolycertError(f"--weights goes with a factory; {text!r} carries its own")
        return _READERS[suffix](_existing(text))
    if ":" in text and not Path(text).exists():
        return _from_factory(text, weights)
    known = ", ".join(_READERS)
    raise PolycertError(
        f"cannot read model {text!r}: give a file ending in {known}, or a factory package.module:function"
    )


def save(module: nn.Module, path: str | os.PathLike[str], architecture: Architecture, input_shape: Shape) -> None:
    """Write weights with their architecture as `.safetensors`, under a temporary name first."""
    target = Path(path)
    if target.suffix != ".safetensors":
        raise PolycertError(f"models are saved as .safetensors, not {target.name!r}")
    metadata = {"architecture": json.dumps(architecture), "input_shape": json.dumps(list(input_shape))}
    handle, name = tempfile.mkstemp(dir=target.resolve().parent, prefix=f".{target.stem}-")
    os.close(handle)
    try:
        tensors = {key: value.detach().contiguous() for key, value in module.state_dict().items()}
        safetensors.torch.save_file(tensors, name, metadata=metadata)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise PolycertError(f"there is no model file {text!r}")
    return path


def _from_safetensors(path: Path) -> ModelFile:
    weights, metadata = _read_safetensors(path)
    if "architecture" not in metadata or "input_shape" not in metadata:
        raise PolycertError(
            f"{path.name} does not say its architecture: save it with polycert, or pass it as --weights to a factory"
        )
    try:
        architecture = json.loads(metadata["architecture"])
        shape = tuple(int(n) for n in json.loads(metadata["input_shape"]))
    except ValueError:
        raise PolycertError(f"the architecture in {path.name} cannot be read") from None
    return ModelFile(_filled(build(architecture), weights, path), shape, dict(metadata))


def _from_npz(path: Path) -> ModelFile:
    entry = _index_entry(path)
    module = build(entry["arch"])
    return ModelFile(_filled(module, _read_npz(path), path), tuple(entry["input_shape"]), entry)


def _index_entry(path: Path) -> dict[str, Any]:
    """The model's entry in the nearest `index.json` above it."""
    for folder in path.resolve().parents:
        index = folder / "index.json"
        if not index.is_file():
            continue
        relative = path.resolve().relative_to(folder).as_posix()
        for entry in json.loads(index.read_text(encoding="utf-8"))["models"].values():
            if entry["file"] == relative:
                return dict(entry)
    raise PolycertError(f"no index.json beside or above {path.name} describes it: pass it as --weights to a factory")


def _from_onnx(path: Path) -> ModelFile:
    raise PolycertError(f"cannot read {path.name}: ONNX files are not supported in this version")


def _from_factory(text: str, weights: str | os.PathLike[str] | None) -> ModelFile:
    module_name, _, function = text.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), function)()
    except (ImportError, AttributeError) as error:
        raise PolycertError(f"cannot import the model factory {text!r}: {error}") from None
    module, shape = made if isinstance(made, tuple) else (made, getattr(made, "input_shape", None))
    if not isinstance(module, nn.Module) or shape is None:
        raise PolycertError(
            f"the factory {text!r} must return (module, input_shape), or a module with an input_shape attribute"
        )
    if weights is not None:
        path = _existing(os.fspath(weights))
        module = _filled(module, read_weights(path), path)
    return ModelFile(module.eval(), tuple(shape), {})


def read_weights(path: Path) -> Weights:
    """A state dict from `.safetensors`, `.npz` or `.pt`."""
    if path.suffix == ".safetensors":
        return _read_safetensors(path)[0]
    if path.suffix == ".npz":
        return _read_npz(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise PolycertError(f"cannot read weights {path.name} safely: {reason}") from None
    if not isinstance(state, dict):
        raise PolycertError(f"{path.name} is not a state dict: save model.state_dict()")
    return state


def _read_safetensors(path: Path) -> tuple[Weights, dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise PolycertError(f"cannot read {path.name}: {error}") from None


def _read_npz(path: Path) -> Weights:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise PolycertError(f"cannot read {path.name}: {error}") from None


def _filled(module: nn.Module, weights: Weights, path: Path) -> nn.Module:
    """The module with the weights, in their own floating-point type."""
    kinds = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if kinds == {torch.float64}:
        module = module.double()
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise PolycertError(f"the weights in {path.name} do not fit the architecture: {reason}") from None
    if any(not bool(torch.isfinite(tensor).all()) for tensor in weights.values() if tensor.is_floating_point()):
        raise PolycertError(f"the weights in {path.name} contain NaN or infinite values")
    return module.eval()


_READERS: dict[str, Callable[[Path], ModelFile]] = {
    ".safetensors": _from_safetensors,
    ".npz": _from_npz,
    ".onnx": _from_onnx,
}
