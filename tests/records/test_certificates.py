"""Records: what a frame holds, three formats that read back the same, and files that are whole or not there."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import polycert as pc
from polycert.records import files
from polycert.records.certificates import Certificates
from polycert.records.files import check_output, save_frame

COLUMNS = {
    "index", "label", "prediction", "certified", "radius", "margin", "nearest", "eps", "seconds",
    "status", "dtype", "norm", "method", "relaxation", "rigorous", "box", "network", "version",
}  # fmt: skip
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": lambda path: pd.read_csv(path, converters={"radius": float}),  # pandas' own parser may round
    ".json": lambda path: pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))),
    ".parquet": pd.read_parquet,
}


def certificates(count: int = 4, begin: int = 0) -> Certificates:
    """One sample of each status, over and over: certified, partial, unproved, misclassified."""
    kind = torch.arange(begin, begin + count) % 4
    wide = {"dtype": torch.float64}
    return Certificates(
        index=torch.arange(begin, begin + count),
        label=torch.zeros(count, dtype=torch.int64),
        prediction=(kind == 3).long(),
        margin=torch.tensor([0.7, -0.1, -2.0, -3.0], **wide)[kind],
        certified=kind == 0,
        radius=torch.tensor([0.1, 1 / 30, 0.0, 0.0], **wide)[kind],
        nearest=torch.ones(count, dtype=torch.int64),
        eps=torch.full((count,), 0.1, **wide),
        seconds=torch.full((count,), 0.01, **wide),
        dtype=tuple("float32" if k % 2 else "float64" for k in range(count)),
        norm=math.inf,
        method="crown",
        relaxation="parallel",
        rigorous=True,
    )


@pytest.mark.parametrize(("norm", "text"), [(2.0, "2"), (math.inf, "inf"), (1.5, "1.5"), (1.9999999, "1.9999999")])
def test_records_name_no_larger_norm(norm: float, text: str) -> None:
    certs = pc.certify(nn.Linear(3, 2), torch.rand(2, 3), None, pc.Ball(norm, 0.1))
    assert certs.to_frame()["norm"].tolist() == [text, text]


def test_frame_has_one_row_per_sample_and_says_what_was_asked() -> None:
    frame = certificates(8).to_frame()
    assert set(frame.columns) == COLUMNS
    assert list(frame["status"]) == ["certified", "partial", "unproved", "misclassified"] * 2
    assert set(frame["norm"]) == {"inf"}
    assert set(frame["method"]) == {"crown"}
    assert frame["rigorous"].all()


def test_frame_of_real_certificates_agrees_with_the_tensors() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    certs = pc.certify(net, torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), pc.Ball(2, 0.2, 0.0, 1.0), batch_size=4)
    frame = certs.to_frame()
    assert list(frame["index"]) == list(range(6))
    assert (frame["radius"].to_numpy() == certs.radius.numpy()).all()
    assert ((frame["status"] == "certified").to_numpy() == certs.certified.numpy()).all()
    assert (frame.loc[frame["prediction"] != frame["label"], "radius"] == 0).all()


@pytest.mark.filterwarnings("error")
def test_certificates_do_not_change_with_what_they_were_made_from() -> None:
    net, x, y = torch.nn.Linear(3, 3), torch.rand(2, 3, requires_grad=True), torch.tensor([0, 1])
    eps = torch.tensor([0.1, 0.2], dtype=torch.float64)
    certs = pc.certify(net, x, y, pc.Ball(eps=eps))
    y.fill_(2)
    eps.fill_(9)
    assert certs.label.tolist() == [0, 1]
    assert certs.eps.tolist() == [0.1, 0.2]


def test_summary_is_in_per_cent() -> None:
    figures = certificates(8).summary()
    assert figures["n"] == 8
    assert figures["CTE"] == pytest.approx(25)
    assert figures["CRE"] == pytest.approx(75)
    assert figures["ACB"] == pytest.approx((0.1 + 1 / 30) / 4)


def test_join_is_the_whole() -> None:
    whole = certificates(7)
    joined = Certificates.join([certificates(3), certificates(4, begin=3)])
    assert joined.to_frame().drop(columns="dtype").equals(whole.to_frame().drop(columns="dtype"))
    assert joined.dtype == ("float64", "float32", "float64") + ("float64", "float32") * 2
    assert len(joined) == 7


def test_join_of_nothing_is_refused() -> None:
    with pytest.raises(pc.PolycertError, match="no samples"):
        Certificates.join([])


@pytest.mark.parametrize("suffix", READERS)
def test_formats_read_back_the_same(tmp_path: Path, suffix: str) -> None:
    certs = certificates(8)
    path = tmp_path / f"records{suffix}"
    certs.save(path)
    back = READERS[suffix](path)
    frame = certs.to_frame()
    assert list(back.columns) == list(frame.columns)
    for name in ("index", "label", "prediction", "certified", "nearest", "status", "method", "dtype"):
        assert list(back[name]) == list(frame[name]), name
    assert back["radius"].to_numpy() == pytest.approx(frame["radius"].to_numpy(), rel=1e-12)
    assert back["margin"].to_numpy() == pytest.approx(frame["margin"].to_numpy(), rel=1e-12)
    assert [str(value) for value in back["norm"]] == ["inf"] * 8


@pytest.mark.parametrize(
    "suffix",
    [
        ".csv",
        ".parquet",
        ".json",
    ],
)
def test_a_radius_is_never_rounded(tmp_path: Path, suffix: str) -> None:
    radius = torch.tensor([1 / 3, 2 / 3, 1e-17, 0.1 + 2**-55], dtype=torch.float64)
    path = tmp_path / f"records{suffix}"
    replace(certificates(4), radius=radius).save(path)
    assert list(READERS[suffix](path)["radius"]) == radius.tolist()


def test_a_path_may_be_text(tmp_path: Path) -> None:
    certificates().save(str(tmp_path / "records.csv"))
    assert len(pd.read_csv(tmp_path / "records.csv")) == 4


@pytest.mark.parametrize("name", ["records", "records.txt", "records.csv.gz", "records.pkl"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(pc.PolycertError, match=r"must end in \.csv, \.json, \.parquet"):
        check_output(tmp_path / name)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pc.PolycertError, match="folder does not exist"):
        check_output(tmp_path / "nowhere" / "records.csv")


def test_check_output_writes_nothing(tmp_path: Path) -> None:
    assert check_output(tmp_path / "records.csv") == tmp_path / "records.csv"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "records.csv"
    path.write_text("old\n", encoding="utf-8")

    def fail(frame: pd.DataFrame, target: Path) -> None:
        target.write_text("index,lab", encoding="utf-8")
        raise error

    monkeypatch.setitem(files.WRITERS, ".csv", fail)
    with pytest.raises(type(error)):
        certificates().save(path)
    assert path.read_text(encoding="utf-8") == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text("old\n", encoding="utf-8")
    save_frame(certificates().to_frame(), path)
    assert len(pd.read_csv(path)) == 4
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="file modes")
def test_records_are_as_readable_as_other_files(tmp_path: Path) -> None:
    path, other = tmp_path / "records.csv", tmp_path / "other"
    certificates().save(path)
    other.touch()
    assert os.stat(path).st_mode == os.stat(other).st_mode
