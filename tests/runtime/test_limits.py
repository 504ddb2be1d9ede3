"""Limits before allocation: small files that promise much are refused with one sentence, in little memory and time."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from onnx import TensorProto, helper
from torch import nn

import polycert as pc
from polycert.data import datasets as data
from polycert.data.sources import SourceError, _unpack_flat
from polycert.errors import LONGEST
from polycert.runtime import limits
from polycert.runtime.limits import read_arrays
from polycert.verification.vnnlib import read_property
from polycert.verification.vnnlib.constraints import term
from polycert.verification.vnnlib.reader import parse_property
from tests.helpers.mutants import mutants

HERE = Path(__file__).parents[1] / "helpers"
# Reads files in one process with a gigabyte more than it has after its start; tells what became of each.
READ = """
import json, os, resource, signal, sys
from pathlib import Path
import onnxruntime, pandas, pyarrow.parquet, torch
import polycert as pc
from polycert.cli.samples import _read_npz as read_npz
from polycert.data.datasets import _read as read_raw
from polycert.models.model_files import read_weights
from polycert.verification.vnnlib import read_property
from polycert.report.runs import gather, read_examples, read_samples
from polycert.training import read_recipe
from polycert.records.run_folder import read_metrics

def late(*_):
    raise TimeoutError("took too long")

def outcome(reader, path):
    signal.alarm(10)
    try:
        eval(reader)(Path(path))
        return "read"
    except pc.PolycertError as error:
        return f"refused: {error}"
    except BaseException as error:
        return f"broken: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)

signal.signal(signal.SIGALRM, late)
torch.set_num_threads(1)
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 2**30
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(json.dumps({name: outcome(*ask) for name, ask in json.loads(sys.stdin.read()).items()}), flush=True)
os._exit(0)
"""


def child(*arguments: str, given: str = "") -> str:
    """What another interpreter prints."""
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def header(shape: str, dtype: str = "<f4") -> bytes:
    """The beginning of an `.npy` that declares a shape."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def zipped(path: Path | io.BytesIO, name: str, pieces: list[bytes], packing: int = zipfile.ZIP_DEFLATED) -> None:
    """An archive with one member."""
    with (
        zipfile.ZipFile(path, "w", packing, compresslevel=9) as archive,
        archive.open(name, "w", force_zip64=True) as f,
    ):
        for piece in pieces:
            f.write(piece)


@cache
def many_zeros() -> bytes:
    """An archive of one array, three quarters of a gigabyte of zeros in as many megabytes."""
    made = io.BytesIO()
    zipped(made, "x.npy", [header(f"({3 * 2**20}, 64)"), *itertools.repeat(bytes(2**24), 48)])
    return made.getvalue()


def zip_bomb(path: Path) -> None:
    path.write_bytes(many_zeros())


def headed(shape: str, dtype: str = "<f4") -> Callable[[Path], None]:
    """An array whose header declares other sizes than what is stored."""
    return lambda path: zipped(path, "x.npy", [header(shape, dtype), bytes(64)])


def lying_directory(path: Path) -> None:
    """The directory declares fewer bytes than the stream has."""
    zipped(path, "x.npy", [header("(4, 4)"), bytes(2**22)])
    content = path.read_bytes()
    size = struct.pack("<I", len(header("(4, 4)")) + 64)
    place = content.rindex(b"PK\x01\x02")
    path.write_bytes(content[: place + 24] + size + content[place + 28 :])


def odd_packing(path: Path) -> None:
    zipped(path, "x.npy", [header("(4, 4)"), bytes(64)], zipfile.ZIP_LZMA)


def described(architecture: object, input_shape: object = (4,), **weights: torch.Tensor) -> Callable[[Path], None]:
    """Weights whose metadata describe an architecture."""

    def write(path: Path) -> None:
        shape = input_shape if isinstance(input_shape, str) else json.dumps(input_shape)
        text = architecture if isinstance(architecture, str) else json.dumps(architecture)
        found = weights or {"0.weight": torch.ones(2, 4), "0.bias": torch.zeros(2)}
        safetensors.torch.save_file(found, path, {"architecture": text, "input_shape": shape})

    return write


def linear(inputs: object, outputs: object, **more: object) -> list[dict[str, object]]:
    return [{"type": "linear", "in_features": inputs, "out_features": outputs, **more}]


def padded(padding: int) -> Callable[[Path], None]:
    layer = {"type": "conv2d", "in_channels": 1, "out_channels": 1, "kernel_size": 1, "padding": padding}
    tensors = {"0.weight": torch.ones(1, 1, 1, 1), "0.bias": torch.zeros(1)}
    return described([layer, {"type": "flatten"}], (1, 2, 2), **tensors)


def bomb(size: int, text: bytes = b" ") -> Callable[[Path], object]:
    """A gzipped file that unpacks to so many bytes."""

    def write(path: Path) -> None:
        with gzip.open(path, "wb") as file:
            for _ in range(size // 2**24):
                file.write(text * (2**24 // len(text)))

    return write


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


DECLARED = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))"
VERSION_2 = """(vnnlib-version <2.0>)
(declare-network net (declare-input X float32 [{inputs}]) (declare-output Y float32 [1,2]))
(assert (>= X[0,0] 0.0)) (assert (<= X[0,0] {number}))"""


def asked(condition: str) -> Callable[[Path], object]:
    return text(DECLARED + f"(assert {condition})")


def second(inputs: str = "1,1", number: str = "1.0") -> Callable[[Path], object]:
    return text(VERSION_2.format(inputs=inputs, number=number))


def packed_state(path: Path) -> None:
    """A state dict whose stored numbers are packed, which torch reads but never writes."""
    made = io.BytesIO()
    torch.save({"w": torch.zeros(2**22)}, made)
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))


def state(value: torch.Tensor, name: str = "w", *, archive: bool = True) -> Callable[[Path], object]:
    return lambda path: torch.save({name: value}, path, _use_new_zipfile_serialization=archive)


def onnx_file(
    *nodes: object, tensors: tuple[object, ...] = (), shape: tuple[int, ...] = (1, 4)
) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
        made = helper.make_graph(
            list(nodes) or [helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:], tensors
        )
        path.write_bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString())

    return write


def declared(*dims: int) -> object:
    """A stored tensor with one entry that declares a shape."""
    return TensorProto(name="c", data_type=1, dims=dims, raw_data=bytes(4))


def subgraphs(depth: int) -> Callable[[Path], object]:
    """A program in an op of a program, and so on, written byte by byte: onnx would not."""

    def write(path: Path) -> None:
        node = field(4, b"Relu") + field(1, b"x") + field(2, b"y")
        for _ in range(depth):
            graph = field(6, field(1, node)) + b"\xa0\x01\x05"  # of type GRAPH
            node = field(4, b"If") + field(1, b"x") + field(2, b"y") + field(5, field(1, b"then_branch") + graph)
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]).SerializeToString() for name in "xy"]
        content = field(7, field(1, node) + field(11, ends[0]) + field(12, ends[1])) + field(8, b"\x10\x0d")
        path.write_bytes(b"\x08\x08" + content)

    return write


def field(number: int, content: bytes) -> bytes:
    """One field of a protobuf message."""
    size, length = len(content), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def outside(path: Path) -> None:
    """A tensor in another file, by a path that leads out of the folder."""
    tensor = TensorProto(name="c", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    onnx_file(helper.make_node("Add", ["x", "c"], ["y"]), tensors=(tensor,))(path)


def many_rows(path: Path) -> None:
    """A table of a billion equal rows, which take no room."""
    frame = pd.DataFrame({name: np.zeros(2**26, np.int8) for name in ("index", "label", "prediction")})
    frame.to_parquet(path, row_group_size=2**26)


ADD = helper.make_node("Add", ["x", "c"], ["y"])
RECIPE = "lambda path: read_recipe(str(path))"
RECORD = "lambda path: gather([path])"
REFUSED: dict[str, tuple[str, str, Callable[[Path], object], str]] = {
    # name: (reader, file, how it is written, a word of the sentence)
    "zip bomb of weights": ("read_weights", "w.npz", zip_bomb, "bytes"),
    "zip bomb of samples": ("read_npz", "w.npz", zip_bomb, "bytes"),
    "zip bomb of examples": ("read_examples", "w.npz", zip_bomb, "counterexample"),
    "header of a large array": ("read_npz", "w.npz", headed("(30000, 30000)"), "stores"),
    "header that overflows": ("read_npz", "w.npz", headed(f"({2**62}, {2**62})"), "stores"),
    "header that wraps to its size": ("read_npz", "w.npz", headed(f"({2**32}, {2**32}, 16)"), "stores"),
    "negative header": ("read_npz", "w.npz", headed("(-4, -4)"), "stores"),
    "header of wide text": ("read_npz", "w.npz", headed("(1,)", "<U100000000"), "stores"),
    "directory that lies": ("read_npz", "w.npz", lying_directory, "w.npz"),
    "another packing": ("read_npz", "w.npz", odd_packing, "packed"),
    "large layer": ("pc.load", "n.safetensors", described(linear(30000, 30000)), "30000"),
    "layer that overflows": ("pc.load", "n.safetensors", described(linear(2**62, 2**62)), "n.safetensors"),
    "layer beyond integers": ("pc.load", "n.safetensors", described(linear(10**40, 2)), "n.safetensors"),
    "negative layer": ("pc.load", "n.safetensors", described(linear(-4, 2)), "n.safetensors"),
    "layer on meta": ("pc.load", "n.safetensors", described(linear(4, 2, device="meta")), "device"),
    "layer in another type": ("pc.load", "n.safetensors", described(linear(4, 2, dtype="f")), "dtype"),
    "negative input": ("pc.load", "n.safetensors", described(linear(4, 2), [-1, 4]), "shape"),
    "empty input": ("pc.load", "n.safetensors", described(linear(4, 2), [0, 4]), "size from 1"),
    "large input": ("pc.load", "n.safetensors", described(linear(4, 2), [10**9, 4]), "entries"),
    "input of many axes": ("pc.load", "n.safetensors", described(linear(4, 2), [1] * 1000 + [4]), "axes"),
    "input of many digits": ("pc.load", "n.safetensors", described(linear(4, 2), f"[{'9' * 5000}]"), "digits"),
    "wide padding": ("pc.load", "n.safetensors", padded(20_000), "entries"),
    "many layers": ("pc.load", "n.safetensors", described([{"type": "relu"}] * 10**6), "layers"),
    "nested architecture": ("pc.load", "n.safetensors", described("[" * 10**5), "nested"),
    "flat but nested": ("pc.load", "n.safetensors", described("[" * 100 + "]" * 100), "nested"),
    "packed state": ("read_weights", "w.pt", packed_state, "packed"),
    "state on meta": ("read_weights", "w.pt", state(torch.ones(2, device="meta")), "numbers"),
    "sparse state": ("read_weights", "w.pt", state(torch.eye(3).to_sparse()), "dense"),
    "long name in an archive": ("read_weights", "w.pt", state(torch.ones(2), "x" * 50_000), "characters"),
    "long name in a row": ("read_weights", "w.pt", state(torch.ones(2), "x" * 50_000, archive=False), "characters"),
    "many digits in a name": ("read_property", "p.vnnlib", text(f"(declare-const X_{'0' * 5000} Real)"), "X_"),
    "many digits used": ("read_property", "p.vnnlib", asked(f"(<= Y_{'0' * 5000} 1)"), "not declared"),
    "many digits": ("read_property", "p.vnnlib", asked(f"(<= Y_0 {'9' * 5000})"), "characters"),
    "many digits behind the point": ("read_property", "p.vnnlib", asked(f"(<= Y_0 0.{'3' * 5000})"), "characters"),
    "exponent": ("read_property", "p.vnnlib", asked("(<= Y_0 1e999999999)"), "exponent"),
    "long product": ("read_property", "p.vnnlib", asked(f"(<= (* Y_0 {'1e999 ' * 10**5}) 1)"), "bits"),
    "nested products": (
        "read_property",
        "p.vnnlib",
        asked("(<= " + "(* 1e999 1e999 " * 50 + "Y_0" + ")" * 50 + " 1)"),
        "bits",
    ),
    "nested property": ("read_property", "p.vnnlib", asked("(and " * 10**5), "nested"),
    "many cases": ("read_property", "p.vnnlib", text(DECLARED + "(assert (or (<= Y_0 1) (<= Y_0 2)))" * 40), "cases"),
    "cases of many constraints": (
        "read_property",
        "p.vnnlib",
        text(DECLARED + "(assert (<= Y_0 1))" * 5000 + f"(assert (or {'(<= Y_0 1)' * 300}))" * 2),
        "constraints",
    ),
    "property bomb": ("read_property", "p.vnnlib.gz", bomb(2**29), "bytes"),
    "damaged gz": ("read_property", "p.vnnlib.gz", text("no gz"), "gzip"),
    "nested recipe": (RECIPE, "r.toml", text("a = " + "[" * 10**5), "nested"),
    "nested tables": (RECIPE, "r.toml", text("a." * 500 + "b = 1"), "nested"),
    "digits in a recipe": (RECIPE, "r.toml", text(f"a = {'9' * 5000}"), "digits"),
    "large recipe": (RECIPE, "r.toml", text("#" * 2**21), "bytes"),
    "bytes as a recipe": (RECIPE, "r.toml", lambda path: path.write_bytes(b"\xff\xfe"), "text"),
    "nested record": (RECORD, "r.json", text("[" * 10**5), "nested"),
    "digits in a record": (RECORD, "r.json", text(f"[{'9' * 5000}]"), "digits"),
    "nested metrics": ("read_metrics", "m.jsonl", text("[" * 10**5 + "\n{}\n"), "nested"),
    "many rows": ("read_samples", "a.parquet", many_rows, "entries"),
    "data set bomb": ("read_raw", "images.gz", bomb(2**29, b"\0"), "bytes"),
    "large tensor": ("pc.load", "n.onnx", onnx_file(ADD, tensors=(declared(30000, 30000),)), "entries"),
    "negative tensor": ("pc.load", "n.onnx", onnx_file(ADD, tensors=(declared(-1, -1),)), "shape"),
    "tensor that overflows": ("pc.load", "n.onnx", onnx_file(ADD, tensors=(declared(2**62, 4),)), "entries"),
    "tensor of many axes": ("pc.load", "n.onnx", onnx_file(ADD, tensors=(declared(*[1] * 1000),)), "axes"),
    "program in a program": ("pc.load", "n.onnx", subgraphs(3), "inside"),
    "programs in programs": ("pc.load", "n.onnx", subgraphs(10**4), "n.onnx"),
    "tensor in another file": ("pc.load", "n.onnx", outside, "never opened"),
    "input of many entries": ("pc.load", "n.onnx", onnx_file(shape=(1, 2**40)), "entries"),
}
SECOND = {
    "integer of many digits": second(number="9" * 5000),
    "number of many digits": second(number="0." + "3" * 5000),
    "exponent": second(number="1e999999999"),
    "large input": second(inputs="1,99999999999"),
    "input beyond integers": second(inputs="1," + "9" * 40),
    "negative input": second(inputs="1,-1"),
    "nested": text(VERSION_2.format(inputs="1,1", number="1.0") + "(assert " + "(and " * 10**5),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of every file, all read by one process."""
    asks = {}
    for number, (name, (reader, file, write, _)) in enumerate(REFUSED.items()):
        folder = tmp_path_factory.mktemp(f"file{number}")
        write(folder / file)
        asks[name] = (reader, str(folder / file))
    return json.loads(child("-c", READ, given=json.dumps(asks)))


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_promises_too_much_is_refused(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name].startswith("refused: "), outcomes[name][:500]
    assert REFUSED[name][3] in outcomes[name]


@pytest.mark.parametrize("name", SECOND)
def test_version_2_is_refused_as_well(name: str, tmp_path: Path) -> None:
    pytest.importorskip("vnnlib")
    SECOND[name](tmp_path / "p.vnnlib")
    with pytest.raises(pc.PolycertError):
        read_property(tmp_path / "p.vnnlib")


@pytest.mark.parametrize("name", ["integer of many digits", "exponent"])
def test_version_2_without_its_package(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the package raises and returns for numbers, whichever of its versions is there."""
    expressions = {"integer of many digits": Int("9" * 5000), "exponent": Int("1e999999999")}
    one = SimpleNamespace(
        shape=[1, 1], dtype=SimpleNamespace(name="F32"), kind=SimpleNamespace(name="Input"), indices=[0, 0], name="X"
    )
    query = SimpleNamespace(
        networks=[SimpleNamespace(inputs=[one], outputs=[one])],
        assertions=[SimpleNamespace(expr=LessEqual(expressions[name], expressions[name]))],
    )
    fake = SimpleNamespace(parse_query_string=lambda _: query, VNNLibException=RuntimeError)
    monkeypatch.setitem(sys.modules, "vnnlib", fake)
    with pytest.raises(pc.PolycertError, match="characters"):
        parse_property("(vnnlib-version <2.0>)")


@dataclass
class Int:
    """As the package's."""

    lexeme: str


@dataclass
class LessEqual:
    """As the package's."""

    lhs: Int
    rhs: Int


def test_devices_that_hold_no_numbers(tmp_path: Path) -> None:
    described(linear(4, 2))(tmp_path / "n.safetensors")
    with pytest.raises(pc.PolycertError, match="device 'meta'"):
        pc.load(tmp_path / "n.safetensors", device="meta")
    with pytest.raises(pc.PolycertError, match="device 'abacus'"):
        pc.load(tmp_path / "n.safetensors", device="abacus")
    with pytest.raises(pc.PolycertError, match="hold no numbers"):
        pc.capture(nn.Linear(4, 2, device="meta"), (4,))
    with pytest.raises(pc.PolycertError, match="device 'meta'"):
        pc.certify(pc.load(tmp_path / "n.safetensors"), torch.ones(1, 4, device="meta"), None, pc.Ball(2, 0.1))


@pytest.mark.parametrize("shape", [(-4,), (0, 4), (2**40,), (1,) * 9])
def test_shapes_that_no_input_has(shape: tuple[int, ...]) -> None:
    with pytest.raises(pc.PolycertError, match="the input would have shape"):
        pc.capture(nn.Linear(4, 2), shape)


def test_an_archive_may_not_unpack_to_too_much(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("file")
        member.size = 2**29
        archive.addfile(member, Zeros(member.size))
    with pytest.raises(SourceError, match="bytes"):
        _unpack_flat(tmp_path / "bomb.tar.gz", tmp_path)


class Zeros(io.RawIOBase):
    """A stream of zeros."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        given = min(size, self.left)
        self.left -= given
        return bytes(given)


def test_idx_sizes_that_wrap_around() -> None:
    raw = bytes([0, 0, 8, 3]) + struct.pack(">III", 2**31, 2**31, 4)
    with pytest.raises(pc.PolycertError, match=str(2**64)):
        data.parse_idx(raw, 3)


# --- what is let through -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [np.float64(2.5), np.zeros((0, 3)), np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.eye(3, 2))],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_they_were(array: np.ndarray, save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path / "a.npz", a=array, b=np.ones(2))
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == ["a", "b"]
    assert list(read_arrays(tmp_path / "a.npz", ("b", "c"))) == ["b"]
    np.testing.assert_array_equal(found["a"], array)
    assert found["a"].dtype == array.dtype
    assert found["a"].flags.writeable


def test_what_packs_well_is_read_up_to_a_size(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(2**24))  # 128 MiB in 128 KiB
    assert read_arrays(tmp_path / "a.npz")["x"].shape == (2**24,)


def test_the_limit_of_files_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2000))
    monkeypatch.setenv("POLYCERT_LARGEST_FILE", "1e-5")
    with pytest.raises(pc.PolycertError, match="POLYCERT_LARGEST_FILE"):
        read_arrays(tmp_path / "a.npz")
    for text in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("POLYCERT_LARGEST_FILE", text)
        with pytest.raises(pc.PolycertError, match="positive number of GiB"):
            limits.largest_file()


def test_a_packed_property_says_the_same(tmp_path: Path) -> None:
    content = DECLARED + "(assert (<= Y_0 (* 2 1e-300)))"
    (tmp_path / "p.vnnlib").write_text(content)
    (tmp_path / "p.vnnlib.gz").write_bytes(gzip.compress(content.encode()))
    plain, packed = (read_property(tmp_path / name).boxes[0] for name in ("p.vnnlib", "p.vnnlib.gz"))
    assert plain.upper.tolist() == packed.upper.tolist() == [1.0]
    assert plain.clauses[0].constants.tolist() == packed.clauses[0].constants.tolist()


def test_a_long_sum_takes_no_longer_than_its_length() -> None:
    names = [f"Y_{k}" for k in range(20_000)]
    started = time.monotonic()
    assert len(term(["+", *names]).factors) == len(names)
    assert time.monotonic() - started < 5


def test_a_long_quotation_is_cut() -> None:
    assert len(str(pc.PolycertError("word " * 10**6))) == LONGEST + 1


# --- damaged files -------------------------------------------------------------------------------------------------


def test_damaged_files_are_read_or_refused_with_one_sentence() -> None:
    """For ten seconds, in a process with a gigabyte more than it has after its start."""
    found = json.loads(child(str(HERE / "mutants.py"), "0", "10"))
    assert found["wrong"] == []
    assert all(count > 10 for count in found["refused"].values())
    assert found["refused"].keys() == found["seen"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_more_damaged_files(seed: int) -> None:
    assert json.loads(child(str(HERE / "mutants.py"), str(seed), "60"))["wrong"] == []


def test_mutants_repeat() -> None:
    first, again = ([m.content for m in itertools.islice(mutants(3), 200)] for _ in range(2))
    assert first == again
