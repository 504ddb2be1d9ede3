"""The demo and its pictures, with a shorter training."""

from pathlib import Path

import pandas as pd
import pytest

import polycert as pc
from polycert.cli import demo


def test_the_demo_writes_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EPOCHS", 5)
    lines: list[str] = []
    demo.run(tmp_path / "out", lines.append)
    for name in ("two_phases.png", "digits.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    net = pc.load(tmp_path / "out" / "model.safetensors")
    assert net.input_shape == (1, 28, 28)
    assert (tmp_path / "out" / "certificates.csv").read_text().count("\n") == 501
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "demo" in page
    assert page.count("data:image/png;base64,") > 24
    rows = pd.read_parquet(tmp_path / "out" / "evaluation.samples.parquet")
    assert len(rows) == 500
    assert (rows["radius"] <= rows["largest"] + 1e-4).all()  # the search's tolerance
    assert not (rows["attack_radius"] < rows["largest"]).any()
    assert not (rows["attacked"] & rows["certified"]).any()
    table = [line for line in lines if "%" in line]
    assert len(table) == 3
