"""The paper's claims: judged by records, and as a part of the report's page."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polycert.cli import app
from polycert.report.runs import ReportedModel, gather
from polycert_paper import claims, comparisons
from polycert_paper.claims import CLAIMS, FAILS, HOLDS, OPEN, PARTLY, Claim, claims_part
from tests.helpers.report_files import EPS, record, samples, write_evaluation, write_training


def test_the_claims_are_on_the_page_only_where_asked_for(tmp_path: Path) -> None:
    path, page = write_evaluation(tmp_path / "a.json"), tmp_path / "r.html"
    assert CliRunner().invoke(app, ["report", str(path), "--out", str(page)]).exit_code == 0
    assert "The paper" not in page.read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["report", str(path), "--out", str(page), "--paper"]).exit_code == 0
    for claim in CLAIMS:
        assert html.escape(claim.text, quote=False) in page.read_text(encoding="utf-8")


def run_of(**changes: Any) -> ReportedModel:
    values = record(**changes)
    return ReportedModel(name=str(values["model"]), path=Path(f"{values['model']}.json"), record=values)


def verdict(position: int, *runs: ReportedModel) -> str:
    return CLAIMS[position].check(runs).verdict


def test_nothing_is_said_without_evidence() -> None:
    for claim in CLAIMS:
        found = claim.check([])
        assert found.verdict == OPEN
        assert "`" in found.missing, claim.text


def test_kw_with_attacks() -> None:
    kw, worse = run_of(model="kw", method="kw", CRE_Lin=4.4), run_of(model="both", method="kw+at", CRE_Lin=8.1)
    assert verdict(0, kw, worse) == HOLDS
    assert verdict(0, kw, run_of(method="kw+at", CRE_Lin=4.6)) == FAILS  # within the noise of 1000 samples
    assert verdict(0, kw, run_of(method="kw+at", CRE_Lin=8.1, dataset="cifar10")) == OPEN


def test_partial_bounds_are_counted_on_cifar() -> None:
    frame = samples(1000)
    frame["largest"] = np.where(np.arange(1000) < 150, 0.05, 0.2)
    frame["radius"], frame["certified"] = np.minimum(frame["largest"], EPS), frame["largest"] >= EPS
    frame["prediction"] = frame["label"]

    def run(dataset: str) -> ReportedModel:
        return ReportedModel(name="c", path=Path("c.json"), record=record(dataset=dataset), samples=frame)

    assert "15.0 % of 1,000" in CLAIMS[1].check([run("cifar10")]).evidence[0].text
    assert verdict(1, run("cifar10")) == HOLDS
    assert verdict(1, run("mnist")) == OPEN
    assert CLAIMS[1].check([ReportedModel("c", Path("c"), record(dataset="cifar10"), frame[:500])]).verdict == OPEN
    frame["prediction"] = frame["label"] + 1  # a radius of a misclassified sample would not count
    assert verdict(1, run("cifar10")) == FAILS


def test_the_search_needs_both_architectures() -> None:
    fc1, cnn = run_of(T_bisection=12.0, T_envelope=9.0), run_of(architecture="cnn", T_bisection=10.0, T_envelope=9.0)
    assert verdict(3, fc1) == PARTLY
    assert verdict(3, fc1, cnn) == HOLDS
    assert verdict(3, fc1, run_of(architecture="cnn", T_bisection=10.0, T_envelope=9.9)) == PARTLY
    assert "saves 57 %" in CLAIMS[3].check([run_of(T_bisection=12.0, T_envelope=9.0, T_root=5.1)]).evidence[0].text


def test_overhead_iterations_and_norms() -> None:
    assert verdict(2, run_of(dataset="cifar10", PEC_overhead=1.0)) == HOLDS
    assert verdict(2, run_of(dataset="cifar10", PEC_overhead=4.0)) == FAILS
    assert verdict(2, run_of(dataset="mnist", PEC_overhead=1.0)) == OPEN
    assert verdict(6, run_of(iterations={"1": 40, "5": 20, "6": 40})) == HOLDS
    assert verdict(6, run_of(iterations={"5": 40, "6": 60})) == FAILS
    kw, per = run_of(method="kw", parameter_norm=10.0), run_of(method="c-per+at", parameter_norm=30.0)
    assert verdict(7, kw, per) == HOLDS
    assert verdict(7, run_of(method="kw", parameter_norm=31.0), per) == FAILS


def test_measurements_without_a_row_count(tmp_path: Path) -> None:
    single = {"model": "measured", "dataset": "mnist", "norm": "inf", "eps": 0.1, "n": 5, "iterations": {"2": 45}}
    (tmp_path / "c.json").write_text(json.dumps(single), encoding="utf-8")
    assert "measured: 100.0 % of 45 distances" in claims_part(gather([tmp_path])).content


def test_sub_samples_are_compared_all_else_equal(tmp_path: Path) -> None:
    write_training(tmp_path / "few", subsample=20, error=12.5)
    write_training(tmp_path / "all", subsample=100, error=12.0)
    assert verdict(4, *gather([tmp_path])) == HOLDS
    assert verdict(4, *gather([tmp_path / "few"])) == OPEN
    write_training(tmp_path / "other", subsample=100, error=2.0, gamma=3.0)  # another recipe: not comparable
    assert verdict(4, *gather([tmp_path])) == HOLDS
    write_training(tmp_path / "better", error=2.0)  # the whole batch
    assert verdict(4, *gather([tmp_path])) == PARTLY
    for method in ("ibp", "c-ibp"):
        write_training(tmp_path / f"{method}10", method=method, dataset="cifar10", subsample=10, error=70.0)
        write_training(tmp_path / f"{method}100", method=method, dataset="cifar10", subsample=100, error=60.0)
        assert verdict(5, *gather([tmp_path])) == (PARTLY if method == "ibp" else HOLDS)


def test_a_difference_must_be_more_than_chance() -> None:
    one, other = run_of(CRE_Lin=10.0, n=10_000), run_of(CRE_Lin=11.0, n=10_000)
    # Standard errors 0.30 and 0.31 points: 1.96 times their joint 0.43 is 0.85 < 1, but not with 1000 samples.
    assert comparisons.difference(other, one, "CRE_Lin") == pytest.approx(1.0)
    assert comparisons.difference(run_of(CRE_Lin=11.0), run_of(CRE_Lin=10.0), "CRE_Lin") == 0


def test_a_mixed_claim_holds_in_part() -> None:
    def check(runs: Any) -> Any:
        yield claims.Evidence("yes", True, ("a",))
        yield claims.Evidence("no", False, ("a", "b"))

    found = Claim("text", "measure", ((check, "more"),)).check([])
    assert (found.verdict, found.sources, found.missing) == (PARTLY, ["a", "b"], "")
