"""Model files: what is written is read back, and what is broken, foreign or unsafe is refused with a sentence."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import polycert as pc
from polycert.models import model_files
from polycert.models.architectures import Architecture, build, cnn

SHAPE = (1, 2, 2)
ARCHITECTURE: Architecture = [
    {"type": "flatten"},
    {"type": "linear", "in_features": 4, "out_features": 6},
    {"type": "relu"},
    {"type": "linear", "in_features": 6, "out_features": 3},
]
FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (1, 2, 2)

def half():
    module, shape = make()
    return module.half(), shape

def with_attribute():
    module, shape = make()
    module.input_shape = shape
    return module

def bare():
    return make()[0]

def number():
    return 3
"""


@pytest.fixture
def module() -> nn.Sequential:
    torch.manual_seed(0)
    return build(ARCHITECTURE)


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of factories that can be imported by name."""
    name = f"factories_of_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FACTORY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in module.state_dict().items()}


def write_index(folder: Path, file: str, **changes: Any) -> None:
    entry = {"file": file, "arch": ARCHITECTURE, "input_shape": SHAPE, "paper": {"CTE": 1.0}, **changes}
    (folder / "index.json").write_text(json.dumps({"models": {"net": entry}}), encoding="utf-8")


def assert_same(network: pc.Network, module: nn.Module) -> None:
    x = torch.rand(5, *network.input_shape, dtype=network.dtype)
    with torch.no_grad():
        assert torch.allclose(network(x), module(x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_save_and_load(tmp_path: Path, module: nn.Module, dtype: torch.dtype) -> None:
    path = tmp_path / "net.safetensors"
    pc.save(module.to(dtype), path, ARCHITECTURE, SHAPE)
    network = pc.load(path)
    assert network.dtype == dtype
    assert network.input_shape == SHAPE
    assert_same(network, module)
    assert list(tmp_path.iterdir()) == [path]


def test_save_and_load_a_convolution(tmp_path: Path) -> None:
    architecture = cnn((1, 8, 8), classes=3, channels=(2, 3), hidden=5)
    module = build(architecture)
    pc.save(module, tmp_path / "net.safetensors", architecture, (1, 8, 8))
    assert_same(pc.load(str(tmp_path / "net.safetensors")), module)


def test_loading_is_in_evaluation_mode(tmp_path: Path) -> None:
    architecture: Architecture = [
        {"type": "conv2d", "in_channels": 1, "out_channels": 2, "kernel_size": 2},
        {"type": "batch_norm2d", "num_features": 2},
        {"type": "flatten"},
        {"type": "linear", "in_features": 2, "out_features": 3},
    ]
    module = build(architecture).train()
    module(torch.rand(9, *SHAPE))  # moves the running statistics
    pc.save(module, tmp_path / "net.safetensors", architecture, SHAPE)
    assert not model_files.load_module(tmp_path / "net.safetensors").module.training
    assert_same(pc.load(tmp_path / "net.safetensors"), module.eval())


def write(module: nn.Module, path: Path, architecture: list[dict[str, object]]) -> None:
    """A file that `pc.save` would refuse to write."""
    metadata = {"architecture": json.dumps(architecture), "input_shape": json.dumps(list(SHAPE))}
    tensors = {key: value.contiguous() for key, value in module.state_dict().items()}
    safetensors.torch.save_file(tensors, path, metadata=metadata)


def test_save_refuses_an_architecture_that_does_not_fit(tmp_path: Path, module: nn.Module) -> None:
    with pytest.raises(pc.PolycertError, match="do not fit"):
        pc.save(module, tmp_path / "net.safetensors", cnn((1, 8, 8)), (1, 8, 8))
    assert not list(tmp_path.iterdir())


def test_save_refuses_other_endings(tmp_path: Path, module: nn.Module) -> None:
    with pytest.raises(pc.PolycertError, match=r"\.safetensors"):
        pc.save(module, tmp_path / "net.pt", ARCHITECTURE, SHAPE)


def test_the_same_model_makes_the_same_file(tmp_path: Path, module: nn.Module) -> None:
    contents = set()
    for k in range(8):
        pc.save(module, tmp_path / f"{k}.safetensors", ARCHITECTURE, SHAPE)
        contents.add((tmp_path / f"{k}.safetensors").read_bytes())
    assert len(contents) == 1


def test_a_failing_save_leaves_the_old_file(tmp_path: Path, module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(b"old")

    def fail(self: Path, content: bytes) -> None:
        self.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        pc.save(module, path, ARCHITECTURE, SHAPE)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 5, 40, -10])
def test_a_truncated_file_is_refused(tmp_path: Path, module: nn.Module, keep: int) -> None:
    path = tmp_path / "net.safetensors"
    pc.save(module, path, ARCHITECTURE, SHAPE)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(pc.PolycertError, match=r"cannot read net\.safetensors"):
        pc.load(path)


def test_weights_without_architecture_are_refused(tmp_path: Path, module: nn.Module) -> None:
    path = tmp_path / "net.safetensors"
    safetensors.torch.save_file(module.state_dict(), path)
    with pytest.raises(pc.PolycertError, match="does not say its architecture"):
        pc.load(path)


def test_a_broken_architecture_is_refused(tmp_path: Path, module: nn.Module) -> None:
    path = tmp_path / "net.safetensors"
    safetensors.torch.save_file(module.state_dict(), path, metadata={"architecture": "[", "input_shape": "[1]"})
    with pytest.raises(pc.PolycertError, match="cannot be read"):
        pc.load(path)


def test_an_unknown_layer_is_refused(tmp_path: Path, module: nn.Module) -> None:
    path = tmp_path / "net.safetensors"
    write(module, path, [*ARCHITECTURE, {"type": "eval"}])
    with pytest.raises(pc.PolycertError, match="unknown type 'eval'"):
        pc.load(path)


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    other = build([{"type": "flatten"}, {"type": "linear", "in_features": 4, "out_features": 3}])
    write(other, path, ARCHITECTURE)
    with pytest.raises(pc.PolycertError, match="do not fit the architecture"):
        pc.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, module: nn.Sequential, value: float) -> None:
    with torch.no_grad():
        module[1].weight[2, 1] = value
    write(module, tmp_path / "net.safetensors", ARCHITECTURE)
    with pytest.raises(pc.PolycertError, match="NaN or infinite"):
        pc.load(tmp_path / "net.safetensors")


def test_half_precision_weights_are_refused(tmp_path: Path, module: nn.Module) -> None:
    path = tmp_path / "net.safetensors"
    write(module.half(), path, ARCHITECTURE)
    with pytest.raises(pc.PolycertError, match="float32 or float64"):
        pc.load(path)


@pytest.mark.parametrize(
    ("kind", "value", "why"), [("int64", 2**24 + 1, "is not held by"), ("complex64", 1 + 1j, "got complex64")]
)
def test_weights_that_the_network_cannot_hold_are_refused(
    kind: str, value: complex, why: str, tmp_path: Path, module: nn.Module
) -> None:
    """Whole numbers would be rounded, and imaginary parts dropped."""
    held = arrays(module)
    held["1.bias"] = np.full_like(held["1.bias"], value, dtype=kind)
    np.savez(tmp_path / "net.npz", **held)
    write_index(tmp_path, "net.npz")
    with pytest.raises(pc.PolycertError, match=why):
        pc.load(tmp_path / "net.npz")


def test_weights_in_another_order_of_bytes(tmp_path: Path, module: nn.Module) -> None:
    np.savez(tmp_path / "net.npz", **{name: array.astype(">f4") for name, array in arrays(module).items()})
    write_index(tmp_path, "net.npz")
    assert_same(pc.load(tmp_path / "net.npz"), module)


@pytest.mark.parametrize("folder", [".", "family"])
def test_npz_with_its_index(tmp_path: Path, module: nn.Module, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / "net.npz"
    np.savez(path, **arrays(module))
    write_index(tmp_path, (Path(folder) / "net.npz").as_posix())
    assert_same(pc.load(path), module)
    assert model_files.load_module(path).about["paper"] == {"CTE": 1.0}


def test_npz_without_an_entry_is_refused(tmp_path: Path, module: nn.Module) -> None:
    np.savez(tmp_path / "net.npz", **arrays(module))
    write_index(tmp_path, "other.npz")
    with pytest.raises(pc.PolycertError, match=r"no index\.json"):
        pc.load(tmp_path / "net.npz")


def object_array(path: Path) -> None:
    np.savez(path, **{"1.weight": np.array([{}], dtype=object)})


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"1.weight": 0}))


def garbage(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04garbage")


@pytest.mark.parametrize("write", [object_array, pickled, garbage])
def test_npz_that_is_not_plain_arrays_is_refused(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "net.npz")
    write_index(tmp_path, "net.npz")
    with pytest.raises(pc.PolycertError, match=r"cannot read net\.npz"):
        pc.load(tmp_path / "net.npz")


def save_pt(module: nn.Module, path: Path) -> None:
    torch.save(module.state_dict(), path)


def save_npz(module: nn.Module, path: Path) -> None:
    np.savez(path, **arrays(module))


def save_safetensors(module: nn.Module, path: Path) -> None:
    safetensors.torch.save_file(module.state_dict(), path)


@pytest.mark.parametrize(
    ("name", "write"), [("w.pt", save_pt), ("w.npz", save_npz), ("w.safetensors", save_safetensors)]
)
@pytest.mark.parametrize("function", ["make", "with_attribute"])
def test_factory_with_weights(
    tmp_path: Path,
    factories: str,
    module: nn.Module,
    name: str,
    write: Callable[[nn.Module, Path], None],
    function: str,
) -> None:
    write(module, tmp_path / name)
    network = pc.load(f"{factories}:{function}", weights=tmp_path / name)
    assert network.input_shape == SHAPE
    assert_same(network, module)


def test_factory_in_half_precision_is_refused(factories: str) -> None:
    with pytest.raises(pc.PolycertError, match=r"float32 or float64, got torch\.float16"):
        pc.load(f"{factories}:half")


@pytest.mark.parametrize("function", ["bare", "number"])
def test_factory_that_returns_something_else_is_refused(factories: str, function: str) -> None:
    with pytest.raises(pc.PolycertError, match=r"must return \(module, input_shape\)"):
        pc.load(f"{factories}:{function}")


@pytest.mark.parametrize("name", ["no_such_module_here:make", "json:no_such_function"])
def test_factory_that_does_not_exist(name: str) -> None:
    with pytest.raises(pc.PolycertError, match="cannot import the model factory"):
        pc.load(name)


class Trap:
    """Unpickling it leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_is_never_executed(tmp_path: Path, factories: str, plain: bool) -> None:
    trace, path = tmp_path / "executed", tmp_path / "w.pt"
    if plain:
        path.write_bytes(pickle.dumps(Trap(trace), protocol=2))
    else:
        torch.save({"1.weight": Trap(trace)}, path)
    with pytest.raises(pc.PolycertError, match="safely"):
        pc.load(f"{factories}:make", weights=path)
    assert not trace.exists()


def test_a_pickled_module_is_refused(tmp_path: Path, factories: str, module: nn.Module) -> None:
    torch.save(module, tmp_path / "w.pt")
    with pytest.raises(pc.PolycertError, match="safely"):
        pc.load(f"{factories}:make", weights=tmp_path / "w.pt")


def test_a_list_is_no_state_dict(tmp_path: Path, factories: str) -> None:
    torch.save([torch.zeros(2)], tmp_path / "w.pt")
    with pytest.raises(pc.PolycertError, match="not a state dict"):
        pc.load(f"{factories}:make", weights=tmp_path / "w.pt")


def test_weights_that_do_not_fit_a_factory(tmp_path: Path, factories: str) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(pc.PolycertError, match="do not fit the architecture"):
        pc.load(f"{factories}:make", weights=tmp_path / "w.pt")


def test_weights_go_with_a_factory_only(tmp_path: Path, module: nn.Module) -> None:
    path = tmp_path / "net.safetensors"
    pc.save(module, path, ARCHITECTURE, SHAPE)
    with pytest.raises(pc.PolycertError, match="carries its own"):
        pc.load(path, weights=path)


@pytest.mark.parametrize("name", ["no.safetensors", "no.npz"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(pc.PolycertError, match="there is no file"):
        pc.load(tmp_path / name)


@pytest.mark.parametrize("name", ["net.txt", "net", ""])
def test_an_unknown_ending(name: str) -> None:
    with pytest.raises(pc.PolycertError, match="cannot read model"):
        pc.load(name)
