"""Read and write model files. Reading never executes a pickle; a file is written whole or not at all."""

from __future__ import annotations

import importlib
import json
import os
import pickletools
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from polycert.errors import PolycertError, reason
from polycert.forms import Shape
from polycert.graph import Network, capture
from polycert.graph.onnx import ENDINGS, read_onnx
from polycert.models.architectures import Architecture, build
from polycert.records.files import whole_file
from polycert.runtime import limits
from polycert.runtime.execution import checked_device
from polycert.runtime.limits import read_arrays

Weights = dict[str, Tensor]
LONGEST_TEXT = 1000  # characters of a name in a pickle
PICKLES = 5  # in a row at the beginning of a `.pt` file that is no archive


class ModelFile(NamedTuple):
    """A module in evaluation mode, the shape of its inputs, and what its file says about it."""

    module: nn.Module
    input_shape: Shape
    about: dict[str, Any]


def load(
    path: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = None,
    *,
    device: torch.device | str = "cpu",
) -> Network:
    """Load a network from a file.

    Args:
        path: `.onnx` or `.onnx.gz`; `.safetensors` with its architecture (see `save`); `.npz` with its entry in an
            `index.json` beside or above it; or a factory `package.module:function` that returns a module, or (module,
            input shape).
        weights: for a factory: `.safetensors`, `.npz`, or a `.pt` state dict (read with `weights_only`).
        device: the device of its weights.
    """
    text, where = os.fspath(path), checked_device(device)
    if text.endswith(ENDINGS):
        _refuse_weights(text, weights)
        return read_onnx(_existing(text), where)
    found = load_module(path, weights)
    return capture(found.module.to(where), found.input_shape)


def load_module(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> ModelFile:
    """Load the module instead of a network, with what its file says about it."""
    text = os.fspath(path)
    for ending, reader in _READERS.items():
        if text.endswith(ending):
            _refuse_weights(text, weights)
            return reader(_existing(text))
    if ":" in text and not Path(text).exists():
        return _from_factory(text, weights)
    known = ", ".join(_READERS)
    raise PolycertError(
        f"cannot read model {text!r}: give a file ending in {known}, or a factory package.module:function"
    )


def _refuse_weights(text: str, weights: str | os.PathLike[str] | None) -> None:
    """Refuse separate weights for a file that holds its own."""
    if weights is not None:
        raise PolycertError(f"--weights goes with a factory; {text!r} carries its own")


def save(module: nn.Module, path: str | os.PathLike[str], architecture: Architecture, input_shape: Shape) -> None:
    """Write the module's weights with their architecture to a `.safetensors` file, whole or not at all."""
    target = Path(path)
    if target.suffix != ".safetensors":
        raise PolycertError(f"models are saved as .safetensors, not {target.name!r}")
    if not target.resolve().parent.is_dir():
        raise PolycertError(f"cannot write {str(target)!r}: its folder does not exist; make it first")
    tensors = {key: value.detach().clone().contiguous() for key, value in module.state_dict().items()}
    with torch.random.fork_rng(devices=[]):  # making this module must not advance the caller's random numbers
        _filled(build(architecture), tensors, target)  # checks that the file will be readable
    metadata = {"architecture": json.dumps(architecture), "input_shape": json.dumps(list(input_shape))}
    with whole_file(target) as name:
        name.write_bytes(_ordered(safetensors.torch.save(tensors, metadata)))


def _ordered(content: bytes) -> bytes:
    """Return the bytes of a `.safetensors` file with the keys of its header sorted: the library's order is random."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise PolycertError(f"there is no file {text!r}")
    return path


def _from_safetensors(path: Path) -> ModelFile:
    weights, metadata = _read_safetensors(path)
    if "architecture" not in metadata or "input_shape" not in metadata:
        raise PolycertError(
            f"{path.name} does not say its architecture: save it with polycert, or pass it as --weights to a factory"
        )
    try:
        architecture, shape = (limits.parse_json(metadata[key]) for key in ("architecture", "input_shape"))
    except ValueError as error:
        raise PolycertError(f"the architecture in {path.name} cannot be read: {reason(error)}") from None
    return _described(architecture, shape, weights, path)._replace(about=dict(metadata))


def _from_npz(path: Path) -> ModelFile:
    entry = _index_entry(path)
    if "arch" not in entry or "input_shape" not in entry:
        raise PolycertError(f"the entry of {path.name} in index.json needs arch and input_shape")
    return _described(entry["arch"], entry["input_shape"], _read_npz(path), path)._replace(about=entry)


def _described(architecture: Any, input_shape: Any, weights: Weights, path: Path) -> ModelFile:
    """Return the module of an architecture with these weights.

    It is built without memory first, and with memory only if the weights fit, as these are no larger than their file.
    """
    try:
        with torch.device("meta"):
            _check_fit(build(architecture), weights)
        module, shape = build(architecture), tuple(int(n) for n in input_shape)
    except PolycertError as error:
        raise PolycertError(f"cannot read {path.name}: {error}") from None
    except (ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise PolycertError(f"the architecture of {path.name} cannot be read: {reason(error)}") from None
    return ModelFile(_filled(module, weights, path), shape, {})


def _check_fit(module: nn.Module, weights: Weights) -> None:
    """Raise `PolycertError` unless each tensor of the module has a weight of its shape; scalars may be missing."""
    for name, tensor in module.state_dict().items():
        found = weights.get(name)
        if tensor.dim() and (found is None or found.shape != tensor.shape):
            given = "none" if found is None else str(list(found.shape))
            raise PolycertError(
                f"the weights do not fit the architecture: {name} must have shape {list(tensor.shape)}, got {given}"
            )


def _index_entry(path: Path) -> dict[str, Any]:
    """Return the model's entry in the nearest `index.json` above it."""
    for folder in path.resolve().parents:
        index = folder / "index.json"
        if not index.is_file():
            continue
        relative = path.resolve().relative_to(folder).as_posix()
        try:
            entries = list(limits.parse_json(limits.read_text(index))["models"].values())
            found = [dict(entry) for entry in entries if entry["file"] == relative]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PolycertError(f"{index} is not an index of models: {reason(error)}") from None
        if found:
            return found[0]
    raise PolycertError(f"no index.json beside or above {path.name} describes it: pass it as --weights to a factory")


def _from_onnx(path: Path) -> ModelFile:
    raise PolycertError(f"{path.name} holds a network but no module: use pc.load, which reads ONNX files for proofs")


def _from_factory(text: str, weights: str | os.PathLike[str] | None) -> ModelFile:
    module_name, _, function = text.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise PolycertError(f"cannot import the model factory {text!r}: {reason(error)}") from None
    try:
        made = factory()
        module, shape = made if isinstance(made, tuple) else (made, getattr(made, "input_shape", None))
        sizes = tuple(int(n) for n in shape)
    except Exception as error:
        raise PolycertError(
            f"the factory {text!r} must return (module, input_shape), or a module with an input_shape: "
            f"{type(error).__name__}: {reason(error)}"
        ) from None
    if not isinstance(module, nn.Module):
        raise PolycertError(f"the factory {text!r} must return a module, got {type(module).__name__}")
    if weights is not None:
        path = _existing(os.fspath(weights))
        module = _filled(module, read_weights(path), path)
    return ModelFile(module.eval(), sizes, {})


def read_weights(path: Path) -> Weights:
    """Return the state dict in a `.safetensors`, `.npz` or `.pt` file."""
    if path.suffix == ".safetensors":
        return _read_safetensors(path)[0]
    if path.suffix == ".npz":
        return _read_npz(path)
    limits.checked_size(path)
    try:
        _refuse_packed(path)
        _refuse_long_texts(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except PolycertError:
        raise
    except Exception as error:
        raise PolycertError(
            f"cannot read {path.name} safely, without executing what it holds ({type(error).__name__}): "
            "save model.state_dict() again, or as .safetensors"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise PolycertError(f"{path.name} is not a state dict of tensors: save model.state_dict()")
    if not all(isinstance(name, str) and _plain(tensor) for name, tensor in state.items()):
        raise PolycertError(f"{path.name} must hold dense tensors with their numbers, by name: save model.state_dict()")
    return state


def _plain(tensor: Tensor) -> bool:
    """Whether a tensor is dense, on the CPU and not quantised."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized


def _refuse_packed(path: Path) -> None:
    """Raise `PolycertError` if a `.pt` file is packed. torch never packs, and packed content may unpack to any size."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(member.file_size != member.compress_size for member in archive.infolist()):
                raise PolycertError(f"{path.name} is packed, which torch.save never does: save it again with torch")


def _refuse_long_texts(path: Path) -> None:
    """Raise `PolycertError` if a pickle in a `.pt` file holds a long text.

    torch puts such texts into its errors, and searches these in quadratic time.
    """
    for stream in _pickles(path):
        for _, held, _ in pickletools.genops(stream):
            if isinstance(held, (str, bytes)) and len(held) > LONGEST_TEXT:
                raise PolycertError(f"{path.name} holds a name of more than {LONGEST_TEXT} characters")


def _pickles(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream at the beginning of every pickle of a `.pt` file: one in an archive, or five in a row."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".pkl"):
                    yield BytesIO(archive.read(member))
        return
    with path.open("rb") as file:
        for _ in range(PICKLES):
            yield file


def _read_safetensors(path: Path) -> tuple[Weights, dict[str, str]]:
    limits.checked_size(path)
    try:
        with safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise PolycertError(f"cannot read {path.name}: {error}") from None


def _read_npz(path: Path) -> Weights:
    try:
        return {key: torch.from_numpy(_native(array)) for key, array in read_arrays(path).items()}
    except TypeError as error:
        raise PolycertError(f"cannot read {path.name} as weights: {reason(error)}") from None


def _native(array: np.ndarray) -> np.ndarray:
    """Return the array in this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _filled(module: nn.Module, weights: Weights, path: Path) -> nn.Module:
    """Return the module with the weights, in the weights' floating-point type and in evaluation mode."""
    kinds = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point() or tensor.is_complex()}
    if not kinds <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise PolycertError(f"the weights in {path.name} must be float32 or float64, got {names}: convert them first")
    if torch.float64 in kinds:
        module = module.double()
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise PolycertError(f"the weights in {path.name} do not fit the architecture: {str(error)[:300]}") from None
    if any(not bool(torch.isfinite(tensor).all()) for tensor in weights.values() if tensor.is_floating_point()):
        raise PolycertError(f"the weights in {path.name} contain NaN or infinite values")
    for name, held in module.state_dict().items():
        if name in weights and not torch.equal(held.to(weights[name].dtype), weights[name]):
            raise PolycertError(f"the weight {name} in {path.name} is not held by {held.dtype}: convert it first")
    return module.eval()


_READERS: dict[str, Callable[[Path], ModelFile]] = {
    ".safetensors": _from_safetensors,
    ".npz": _from_npz,
    **dict.fromkeys(ENDINGS, _from_onnx),
}
