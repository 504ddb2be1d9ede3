"""ONNX files whose tensors lie in files beside them, and packed ones: what is read, and what is refused."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

import polycert as pc
from polycert.cli import app
from polycert.graph.fingerprint import fingerprint
from polycert.graph.onnx import OnnxNetwork
from polycert.runtime import limits
from polycert.verification.snapshot import NetworkSnapshot

DATA = "net.onnx.data"
Entries = dict[str, str]


def plain(folder: Path) -> Path:
    """A network of two layers, whose tensors lie in the file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    path = folder / "plain.onnx"
    pc.export(pc.capture(module, (3,)), path)
    return path


def outside(folder: Path) -> Path:
    """The same network as `plain`, whose tensors lie in a file beside it."""
    model = onnx.load(plain(folder))
    path = folder / "net.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location=DATA, size_threshold=0)
    return path


def load(path: Path) -> OnnxNetwork:
    found = pc.load(path)
    assert isinstance(found, OnnxNetwork)
    return found


def edit(path: Path, **entries: str | None) -> None:
    """Change what the first tensor says about its place; None removes an entry."""
    model = onnx.load(path, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL)
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    tensor.ClearField("external_data")
    for key, value in kept.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


# --- what is read --------------------------------------------------------------------------------------------------


def test_tensors_beside_the_file_are_read_as_those_in_it(tmp_path: Path) -> None:
    inside, beside = load(plain(tmp_path)), load(outside(tmp_path))
    assert os.path.getsize(tmp_path / DATA) >= 4 * (15 + 5 + 10 + 2)
    x = torch.rand(4, 3)
    assert torch.equal(inside(x), beside(x))
    assert torch.equal(inside.replay(x), beside.replay(x))
    assert pc.certify(beside, x, None, pc.Ball(eps=0.01)).radius.tolist() == pytest.approx(
        pc.certify(inside, x, None, pc.Ball(eps=0.01)).radius.tolist()
    )


def test_no_file_is_opened_after_loading(tmp_path: Path) -> None:
    """onnxruntime, the replay in another session included, gets the tensors from memory."""
    net = load(outside(tmp_path))
    (tmp_path / DATA).unlink()
    vars(net).pop("replay")
    x = torch.rand(1, 3)
    torch.testing.assert_close(net.replay(x), net(x).double().detach())


def test_the_files_of_torchs_exporter(tmp_path: Path) -> None:
    """Its default for large models: each tensor aligned, in one file; here also without lengths and in a folder."""
    path = outside(tmp_path)
    x = torch.rand(4, 3)
    expected = load(path)(x)
    edit(path, length=None)
    assert torch.equal(load(path)(x), expected)
    (tmp_path / "weights").mkdir()
    shutil.copy(tmp_path / DATA, tmp_path / "weights" / "0.bin")
    edit(path, location="weights/0.bin")
    assert torch.equal(load(path)(x), expected)


def test_an_offset_counts(tmp_path: Path) -> None:
    path = outside(tmp_path)
    x = torch.rand(4, 3)
    expected = load(path)(x)
    (tmp_path / "moved").write_bytes(b"12345" + (tmp_path / DATA).read_bytes())
    model = onnx.load(path, load_external_data=False)
    first = next(t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL)
    start = next((int(entry.value) for entry in first.external_data if entry.key == "offset"), 0)
    edit(path, location="moved", offset=str(start + 5))
    assert torch.equal(load(path)(x), expected)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    path = outside(tmp_path)
    (tmp_path / DATA).rename(tmp_path / "blob")
    (tmp_path / DATA).symlink_to("blob")
    load(path)


def test_digests_cover_the_data(tmp_path: Path) -> None:
    """One bit of the data that no bound would notice."""
    path = outside(tmp_path)
    first = load(path)
    content = bytearray((tmp_path / DATA).read_bytes())
    same = load(path)
    content[0] ^= 1
    (tmp_path / DATA).write_bytes(bytes(content))
    other = load(path)
    digests = [fingerprint(NetworkSnapshot.of(net).own) for net in (first, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert first.program.content == same.program.content != other.program.content


def test_a_constant_beside_the_file(tmp_path: Path) -> None:
    """Attributes of nodes may lie outside as well."""
    tensor = TensorProto(name="c", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="c.bin")
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["x", "c"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "c.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    assert load(tmp_path / "net.onnx")(torch.zeros(1, 2)).tolist() == [[1, 2]]


# --- what is refused -----------------------------------------------------------------------------------------------


def absolute(path: Path) -> None:
    edit(path, location=str(path.with_name(DATA)))


def upwards(path: Path) -> None:
    """Even if the path leads back into the folder."""
    edit(path, location=f"../{path.parent.name}/{DATA}")


def of_windows(path: Path) -> None:
    edit(path, location=f"..\\{DATA}")


def on_a_drive(path: Path) -> None:
    edit(path, location=f"C:{DATA}")


def unnamed(path: Path) -> None:
    edit(path, location="")


def with_a_zero(path: Path) -> None:
    edit(path, location=f"{DATA}\0")


def missing(path: Path) -> None:
    path.with_name(DATA).unlink()


def without_location(path: Path) -> None:
    edit(path, location=None)


def unknown_entry(path: Path) -> None:
    edit(path, key="value")


def entry_twice(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data.add(key="location", value="other")
    path.write_bytes(model.SerializeToString())


def link_out(path: Path) -> None:
    data, elsewhere = path.with_name(DATA), path.parent.parent / f"{path.parent.name}-elsewhere"
    data.rename(elsewhere)
    data.symlink_to(elsewhere)


def folder_out(path: Path) -> None:
    elsewhere = path.parent.parent / f"{path.parent.name}-folder"
    elsewhere.mkdir()
    path.with_name(DATA).rename(elsewhere / DATA)
    path.with_name("sub").symlink_to(elsewhere)
    edit(path, location=f"sub/{DATA}")


def link_to_itself(path: Path) -> None:
    path.with_name(DATA).unlink()
    path.with_name(DATA).symlink_to(DATA)


def folder(path: Path) -> None:
    path.with_name(DATA).unlink()
    path.with_name(DATA).mkdir()


def pipe(path: Path) -> None:
    """Reading it would wait for ever."""
    path.with_name(DATA).unlink()
    os.mkfifo(path.with_name(DATA))


def device(path: Path) -> None:
    path.with_name(DATA).unlink()
    path.with_name(DATA).symlink_to("/dev/zero")


def negative_offset(path: Path) -> None:
    edit(path, offset="-4")


def huge_offset(path: Path) -> None:
    edit(path, offset="9" * 18)


def endless_offset(path: Path) -> None:
    edit(path, offset="9" * 10_000)


def worded_offset(path: Path) -> None:
    edit(path, offset="٤")


def short_length(path: Path) -> None:
    edit(path, length="4")


def huge_length(path: Path) -> None:
    edit(path, length=str(2**40))


def cut_off(path: Path) -> None:
    data = path.with_name(DATA)
    data.write_bytes(data.read_bytes()[:-4])


def in_both(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.raw_data = b"1234"
    path.write_bytes(model.SerializeToString())


def declared_inside(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.DEFAULT
    path.write_bytes(model.SerializeToString())


def not_a_number(path: Path) -> None:
    data = path.with_name(DATA)
    data.write_bytes(b"\xff" * data.stat().st_size)


def huge_tensor(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.dims[:] = [2**31, 2**31]
    path.write_bytes(model.SerializeToString())


def half_precision(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.data_type = TensorProto.FLOAT16
    path.write_bytes(model.SerializeToString())


def too_large_together(path: Path) -> None:
    """Five tensors of 512 MB each, which all are the same hole in one small file."""
    model = onnx.load(path, load_external_data=False)
    for k in range(5):
        tensor = model.graph.initializer.add(
            name=f"big_{k}", data_type=1, dims=[2**27], data_location=TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value="hole")
    path.write_bytes(model.SerializeToString())
    with path.with_name("hole").open("wb") as file:
        file.truncate(2**29)


def list_of_tensors(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    attribute = model.graph.node[0].attribute.add(name="more", type=onnx.AttributeProto.TENSORS)
    attribute.tensors.append(numpy_helper.from_array(np.zeros(2, np.float32)))
    path.write_bytes(model.SerializeToString())


REFUSED: dict[Callable[[Path], None], str] = {
    absolute: "never opened",
    upwards: "never opened",
    of_windows: "never opened",
    on_a_drive: "never opened",
    unnamed: "never opened",
    with_a_zero: "never opened",
    missing: "is not there",
    without_location: "does not say clearly",
    unknown_entry: "does not say clearly",
    entry_twice: "does not say clearly",
    declared_inside: "does not say clearly",
    link_out: "never opened",
    folder_out: "never opened",
    link_to_itself: "never opened",
    folder: "never opened",
    pipe: "never opened",
    device: "never opened",
    negative_offset: "no number of bytes: '-4'",
    huge_offset: "ends at byte",
    endless_offset: "no number of bytes",
    worded_offset: "no number of bytes",
    short_length: "4 bytes in another file, not",
    huge_length: "bytes in another file, not",
    cut_off: "ends at byte",
    in_both: "both in this file and",
    not_a_number: "NaN",
    huge_tensor: "at most",
    half_precision: "type 10",
    too_large_together: "bytes, at most",
    list_of_tensors: "plain tensors",
}


@pytest.mark.parametrize("damage", REFUSED, ids=lambda damage: damage.__name__)
def test_tensors_elsewhere_are_refused_with_one_sentence(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = outside(tmp_path)
    damage(path)
    with pytest.raises(pc.PolycertError) as caught:
        pc.load(path)
    assert REFUSED[damage] in str(caught.value)
    assert str(caught.value).startswith("cannot read net.onnx: ")
    assert "\n" not in str(caught.value)


def test_nothing_is_read_before_all_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = outside(tmp_path)
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *given: opened.append(given) or real(*given))
    load(path)
    assert len(opened) == 4
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[-1].external_data.add(key="offset", value="x")
    path.write_bytes(model.SerializeToString())
    opened.clear()
    with pytest.raises(pc.PolycertError):
        pc.load(path)
    assert not opened


# --- packed files --------------------------------------------------------------------------------------------------


def pack(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


@pytest.mark.parametrize("write", [plain, outside])
def test_a_packed_network_is_the_same(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path)
    x = torch.rand(4, 3)
    assert torch.equal(load(pack(path))(x), load(path)(x))


def test_packed_files_on_the_command_line(tmp_path: Path) -> None:
    net = pack(plain(tmp_path))
    declared = "".join(f"(declare-const {name} Real)" for name in ("X_0", "X_1", "X_2", "Y_0", "Y_1"))
    sides = "".join(f"(assert (>= X_{k} 0))(assert (<= X_{k} 1))" for k in range(3))
    for least, status in ((1000, "unsat"), (-1000, "sat")):
        prop = tmp_path / f"{status}.vnnlib.gz"
        prop.write_bytes(gzip.compress(f"{declared}{sides}(assert (>= Y_0 {least}))".encode()))
        found = CliRunner().invoke(app, ["verify", str(net), str(prop)])
        assert (found.exit_code, found.stdout.splitlines()[0]) == (0, status)


def test_a_packed_network_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNPACKED", 2**20)
    bomb = tmp_path / "net.onnx.gz"
    bomb.write_bytes(gzip.compress(bytes(2**26)))
    with pytest.raises(pc.PolycertError, match="bytes"):
        pc.load(bomb)
    bomb.write_bytes(b"no archive")
    with pytest.raises(pc.PolycertError, match="cannot read net"):
        pc.load(bomb)
    (tmp_path / "cut.onnx.gz").write_bytes(pack(plain(tmp_path)).read_bytes()[:-20])
    with pytest.raises(pc.PolycertError, match="cannot read cut"):
        pc.load(tmp_path / "cut.onnx.gz")
