"""The demo and its pictures, with a shorter training."""

from pathlib import Path

import pytest

import polycert as pc
from polycert import demo


def test_the_demo_writes_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EPOCHS", 5)
    lines: list[str] = []
    demo.run(tmp_path / "out", lines.append)
    for name in ("two_phases.png", "digits.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    net = pc.load(tmp_path / "out" / "model.safetensors")
    assert net.input_shape == (1, 28, 28)
    assert (tmp_path / "out" / "certificates.csv").read_text().count("\n") == 501
    table = [line for line in lines if "%" in line]
    assert len(table) == 3
