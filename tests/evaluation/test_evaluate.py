"""Every figure of an evaluation against an independent computation, and files that survive an interruption."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner, Result

import polycert as pc
from polycert.cli import app
from polycert.cli import evaluate as command
from polycert.evaluation import measurements, store
from polycert.evaluation.evaluate import ALONE, run
from polycert.evaluation.exact import ExactSettings
from polycert.evaluation.model_info import about_model
from polycert.evaluation.model_info import command as command_for
from polycert.evaluation.settings import EvaluationSettings, make_question, usual_upper
from polycert.models.architectures import ARCHITECTURES, build, fc1
from polycert.records.evaluation import COLUMNS
from polycert.records.figures import normal, wilson
from polycert.runtime.execution import Processes
from polycert.training.recipe_files import read_recipe, to_toml
from tests.runtime.test_distributed import RECIPE, twice

EPS = 0.04
LAYERS = [
    {"type": "linear", "in_features": 4, "out_features": 12},
    {"type": "relu"},
    {"type": "linear", "in_features": 12, "out_features": 3},
]
# The record of the public contract, without what needs a model file.
CONTRACT = (
    *("norm", "eps", "n", "CTE", "PGD", "attack", "CRE_Lin", "CRE_CROWN", "CRE_IBP", "CRE_exact", "ACB_Lin"),
    *("ACB_CROWN", "ACB_IBP", "ACB_PEC", "radius_mean", "T_bisection", "T_envelope", "T_root", "unstable"),
    *("parameter_norm", "seconds", "version"),
)


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    generator = torch.Generator().manual_seed(3)
    made = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


@pytest.fixture(scope="module")
def samples(net: nn.Sequential) -> tuple[Tensor, Tensor]:
    """Points of the box; one label in nine is another than the network's."""
    x = torch.rand(90, 4, generator=torch.Generator().manual_seed(4))
    y = net(x).argmax(1)
    y[::9] = (y[::9] + 1) % 3
    return x, y


BALLS = {
    "inf": pc.Ball(math.inf, EPS, 0.0, 1.0),
    "2": pc.Ball(2.0, EPS, 0.0, 1.0, minimum="either"),
}


@pytest.fixture(scope="module", params=BALLS)
def found(request: pytest.FixtureRequest, net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> pc.Evaluation:
    ball = BALLS[request.param]
    return pc.evaluate(net, *samples, ball, samples=True, exact=math.inf, exact_timeout=20, batch_size=32)


def ball_of(found: pc.Evaluation) -> pc.Ball:
    return BALLS[found.record["norm"]]


def per_cent(failed: Any) -> float:
    return 100 * float(np.asarray(failed).mean())


def test_errors_and_bounds_are_those_of_certify(
    net: nn.Sequential, samples: tuple[Tensor, Tensor], found: pc.Evaluation
) -> None:
    record, (x, y) = found.record, samples
    assert record["n"] == 90
    assert record["CTE"] == pytest.approx(per_cent(net(x).argmax(1) != y)) == pytest.approx(100 / 9)
    for name, how in {
        "Lin": {"relaxation": "parallel"},
        "CROWN": {"relaxation": "adaptive"},
        "IBP": {"method": "ibp"},
    }.items():
        certs = pc.certify(net, x, y, ball_of(found), **how)  # type: ignore[arg-type]
        assert 0 < int(certs.certified.sum()) < 80
        assert record[f"CRE_{name}"] == pytest.approx(per_cent(~certs.certified))
        assert record[f"ACB_{name}"] == pytest.approx(EPS * float(certs.certified.double().mean()))
        if name == "Lin":
            assert record["ACB_PEC"] == pytest.approx(float(certs.radius.mean()), rel=1e-6)
            frame = found.to_frame()
            for column in ("label", "prediction", "nearest", "certified"):
                assert list(frame[column]) == getattr(certs, column).tolist()


def test_searches_are_those_of_largest_radius(
    net: nn.Sequential, samples: tuple[Tensor, Tensor], found: pc.Evaluation
) -> None:
    (x, y), ball, frame = samples, ball_of(found), found.to_frame()
    assert found.record["upper"] == 4 * EPS
    for strategy in ("bisection", "envelope", "root"):
        radii = pc.largest_radius(
            *(net, x, y),
            norm=ball.norm,
            upper=4 * EPS,
            low=0.0,
            high=1.0,
            strategy=strategy,
            minimum=ball.minimum,
            rigorous=False,
        )
        assert list(frame[f"evaluations_{strategy}"]) == radii.evaluations.tolist()
        right = radii.prediction == y
        mean = float(radii.evaluations[right].double().mean())
        assert found.record[f"T_{strategy}"] == pytest.approx(mean)
        assert found.record["radius_mean"] == pytest.approx(float(radii.radius.mean()), abs=2e-4)
    assert (frame["largest"] >= frame["radius"]).all()


def test_the_largest_radius_is_proved(net: nn.Sequential, samples: tuple[Tensor, Tensor], found: pc.Evaluation) -> None:
    largest = torch.tensor(found.to_frame()["largest"].to_numpy())
    some = (largest > 0).nonzero().squeeze(1)[:25]
    sure = pc.verify(net, samples[0][some], samples[1][some], ball_of(found).with_eps(largest[some]), timeout=20)
    assert set(sure.status) == {"robust"}


def test_exact_verdicts_are_those_of_verify(
    net: nn.Sequential, samples: tuple[Tensor, Tensor], found: pc.Evaluation
) -> None:
    sure = pc.verify(net, *samples, ball_of(found), timeout=20)
    assert "unknown" not in sure.status
    assert list(found.to_frame()["status"]) == list(sure.status)
    assert found.record["CRE_exact"] == pytest.approx(list(sure.interval()))


def test_figures_are_ordered(found: pc.Evaluation) -> None:
    record = found.record
    errors = [record[name] for name in ("CTE", "PGD", "PGD_strong")] + record["CRE_exact"] + [record["CRE_CROWN"]]
    assert errors == sorted(errors)
    assert record["CRE_exact"][1] <= record["CRE_Lin"]
    assert record["CTE"] < record["PGD_strong"] < record["CRE_IBP"]


def test_counterexamples_hold(net: nn.Sequential, samples: tuple[Tensor, Tensor], found: pc.Evaluation) -> None:
    """Each is in the box, of another class in float64, as far as the record says, and beyond what is proved."""
    frame, (x, y) = found.to_frame(), samples
    assert found.points is not None
    have = ~np.isnan(frame["attack_radius"].to_numpy())
    assert have.sum() > 30
    assert np.isnan(found.points[~have]).all()
    points, label = torch.from_numpy(found.points[have]).double(), y[torch.from_numpy(have)]
    logits = pc.capture(net, (4,)).bind(torch.float64).forward(points)
    own = logits.gather(1, label[:, None]).squeeze(1)
    assert bool((own <= logits.scatter(1, label[:, None], -math.inf).amax(1)).all())
    assert bool(((points >= 0) & (points <= 1)).all())
    size = np.linalg.norm((points - x[torch.from_numpy(have)]).numpy(), ord=ball_of(found).norm, axis=1)
    assert size == pytest.approx(frame["attack_radius"].to_numpy()[have], rel=1e-9, abs=1e-12)
    assert (frame["attack_radius"][have] >= frame["largest"][have]).all()
    assert (frame["attack_radius"][frame["prediction"] != frame["label"]] == 0).all()
    inside = frame["attack_radius"] < EPS * 0.999
    assert frame["attacked"][inside].all()


def test_attacks_near_the_exact_radius(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    """On a network this small an attack finds almost the nearest counterexample: verify proves 90 % of the way."""
    found = pc.evaluate(net, *samples, BALLS["inf"], samples=True)
    radius = torch.tensor(found.columns["attack_radius"])
    some = (radius > 0).nonzero().squeeze(1)[:20]
    sure = pc.verify(
        net, samples[0][some], samples[1][some], BALLS["inf"].with_eps(0.9 * radius[some].double()), timeout=20
    )
    assert sure.status.count("robust") >= 18


def test_units_are_counted_as_intervals_say(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    """One hidden layer: its bounds over a box are exact by interval arithmetic."""
    found = pc.evaluate(net, *samples, BALLS["inf"])
    first = net[0]
    assert isinstance(first, nn.Linear)
    weight, bias, x = (
        first.weight.detach().double().numpy(),
        first.bias.detach().double().numpy(),
        samples[0].double().numpy(),
    )
    low, high = np.maximum(x - EPS, 0), np.minimum(x + EPS, 1)
    positive, negative = weight.clip(min=0), weight.clip(max=0)
    lower, upper = low @ positive.T + high @ negative.T + bias, high @ positive.T + low @ negative.T + bias
    unstable = ((lower < 0) & (upper > 0)).sum(1)
    assert unstable.max() > 0
    assert list(found.columns["unstable"]) == list(unstable)
    assert found.record["unstable"] == pytest.approx(unstable.mean())
    counts = found.record["counts"]
    assert counts["active"] == pytest.approx((lower >= 0).sum(1).mean())
    assert sum(counts.values()) == pytest.approx(12)


def test_curved_units_have_no_counts(samples: tuple[Tensor, Tensor]) -> None:
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    record = pc.evaluate(made, samples[0][:4], samples[1][:4], BALLS["inf"]).record
    assert "unstable" not in record
    assert "counts" not in record


@pytest.mark.parametrize(("count", "total"), [(0, 7), (3, 10), (10, 10), (171, 10000), (9999, 10000)])
def test_intervals_of_errors_are_wilsons(count: int, total: int) -> None:
    expected = scipy.stats.binomtest(count, total).proportion_ci(0.95, method="wilson")
    assert wilson(count, total) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-9)


def test_intervals_of_means_are_normal() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=50)
    expected = scipy.stats.norm.interval(0.95, loc=values.mean(), scale=scipy.stats.sem(values))
    assert normal(values) == pytest.approx(expected)
    assert normal(np.array([0.0, 0.0, 1e-3]))[0] == 0
    assert normal(np.array([2.0])) == (0.0, math.inf)


def test_every_figure_has_its_interval(found: pc.Evaluation) -> None:
    record = found.record
    for name, (low, high) in record["intervals"].items():
        ends = record[name] if isinstance(record[name], list) else [record[name]]
        assert low <= min(ends) <= max(ends) <= high, name
    wanted = {n for n in CONTRACT if n[:3] in ("CTE", "PGD", "CRE", "ACB") or n[:2] == "T_"}
    assert wanted | {"radius_mean", "unstable"} <= set(record["intervals"])


def test_the_record_has_the_keys_of_the_contract(found: pc.Evaluation) -> None:
    assert set(CONTRACT) <= set(found.record)
    assert found.record["version"] == pc.__version__
    assert found.record["seconds"]["total"] > 0


def test_parameters(net: nn.Sequential, found: pc.Evaluation) -> None:
    values = np.concatenate([p.detach().double().numpy().ravel() for p in net.parameters()])
    assert found.record["parameter_norm"] == pytest.approx(math.sqrt((values**2).sum()))
    about = found.record["parameters"]
    assert about["count"] == len(values) == sum(about["histogram"]["counts"])
    assert about["l1"] == pytest.approx(abs(values).sum())
    assert [layer["shape"] for layer in about["layers"]] == [[12, 4], [12], [3, 12], [3]]
    assert math.hypot(*(layer["l2"] for layer in about["layers"])) == pytest.approx(found.record["parameter_norm"])
    # Beyond the last edge, values count in the last bin.
    assert about["histogram"]["counts"][-1] == (values >= 0.99).sum() > 0


def test_the_clean_half(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    leak = {"batch": 9, "start": 0, "stop": 5, "note": "…"}
    record = pc.evaluate(net, *samples, BALLS["inf"], about={"test_leak": leak}).record
    clean = [k for k in range(90) if k % 9 >= 5]
    alone = pc.evaluate(net, samples[0][clean], samples[1][clean], BALLS["inf"]).record
    assert record["clean_half"]["n"] == 40
    assert record["clean_half"]["CTE"] == 0 < record["CTE"]  # wrong labels are where it leaked
    for name in ("CTE", "CRE_Lin", "CRE_CROWN", "CRE_IBP", "ACB_PEC", "radius_mean", "T_root", "unstable"):
        assert record["clean_half"][name] == pytest.approx(alone[name], rel=1e-6), name
        assert record["clean_half"]["intervals"][name] == pytest.approx(alone["intervals"][name], rel=1e-6), name


def test_no_gradient_and_no_generator_is_touched(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    made = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))
    made.load_state_dict(net.state_dict())
    for k, parameter in enumerate(made.parameters()):
        parameter.grad = None if k == 0 else torch.full_like(parameter, float(k))
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    record = pc.evaluate(made, *samples, BALLS["inf"], samples=True, exact=60).record
    assert record["PGD_strong"] > record["CTE"]  # attacks did run
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpys).all()  # noqa: NPY002
    for k, parameter in enumerate(made.parameters()):
        assert parameter.grad is None if k == 0 else bool((parameter.grad == k).all())


def test_pgd_is_the_papers(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    """20 steps of eps/10 along the sign of the cross-entropy's gradient, from the same starts."""
    x, y = samples
    region = BALLS["inf"].at(x)
    start = measurements._gaussian_start(region, 5, torch.arange(90))
    points = start.clone()
    for _ in range(20):
        points.requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(net(points), y, reduction="sum"), points)
        points = (points + EPS / 10 * slope.sign()).detach()
        points = torch.minimum(torch.maximum(points, x - EPS), x + EPS).clamp(0, 1)
    fell = net(points).argmax(1) != y
    ours = pc.evaluate(net, x, y, BALLS["inf"], seed=5)
    assert list(ours.columns["pgd"]) == fell.tolist()
    assert 10 < int(fell.sum()) < 80


def test_the_start_of_pgd_is_gaussian() -> None:
    x = torch.full((400, 50), 0.5)
    start = measurements._gaussian_start(pc.Ball(math.inf, 0.4).at(x), 0, torch.arange(400))
    offsets = ((start - x) / 0.04).double().flatten().numpy()
    assert scipy.stats.kstest(offsets, "norm").pvalue > 0.01
    assert not np.allclose(offsets[:50], offsets[50:100])


def test_random_numbers_belong_to_samples(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    x, y = samples
    whole = pc.evaluate(net, x, y, BALLS["inf"], batch_size=90)
    small = pc.evaluate(net, x, y, BALLS["inf"], batch_size=7, threads=2)
    for name in ("pgd", "attacked", "certified"):
        assert list(whole.columns[name]) == list(small.columns[name])


def test_limits(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    found = pc.evaluate(net, *samples, BALLS["inf"], search_limit=40, exact=math.inf, exact_limit=30)
    assert found.record["limits"] == {"search": 40, "exact": 30}
    frame = found.to_frame()
    assert frame["largest"].notna().sum() == frame["evaluations_root"].notna().sum() == 40
    assert frame["status"].notna().sum() == 30
    assert found.record["radius_mean"] == pytest.approx(frame["largest"][:40].mean())
    first = pc.verify(net, samples[0][:30], samples[1][:30], BALLS["inf"], timeout=20)
    assert found.record["CRE_exact"] == pytest.approx(list(first.interval()))


def test_fast_bounds_decide_nothing_exactly(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    record = pc.evaluate(net, *samples, BALLS["inf"], rigorous=False, exact=1e-9).record
    assert record["CRE_CROWN"] < 100  # bounds without rounding prove some
    assert record["CRE_exact"][1] == 100  # and none of those counts, as no time is left for a proof
    whole = pc.evaluate(net, *samples, BALLS["inf"], rigorous=False, exact=math.inf).record
    assert whole["CRE_exact"] == pytest.approx(
        pc.evaluate(net, *samples, BALLS["inf"], exact=math.inf).record["CRE_exact"]
    )


def test_no_time_leaves_an_interval(net: nn.Sequential, samples: tuple[Tensor, Tensor]) -> None:
    """Attacks alone still falsify: what they found is replayed, whatever time is left."""
    record = pc.evaluate(net, *samples, BALLS["inf"], exact=1e-9).record
    proved_by_none = record["CRE_exact"][1]
    assert record["CRE_exact"][0] == pytest.approx(record["PGD_strong"], abs=1e-9)
    assert proved_by_none <= min(record["CRE_Lin"], record["CRE_CROWN"], record["CRE_IBP"])


def test_the_usual_upper_ends() -> None:
    assert usual_upper("mnist", math.inf, 0.1) == pytest.approx(0.4)
    assert usual_upper("mnist", 2.0, 0.3) == pytest.approx(1.2)
    assert usual_upper("cifar10", math.inf, 2 / 255) == 0.1
    assert usual_upper("cifar10", 2.0, 0.1) == pytest.approx(0.4)
    assert usual_upper("cifar10", math.inf, 0.2) == 0.4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": None}, "labels"),
        ({"ball": pc.Ball(eps=0.0)}, "eps above 0"),
        ({"ball": pc.Ball(eps=torch.full((90,), 0.1))}, "one eps"),
        ({"upper": 1e-5}, "tolerance"),
        ({"steps": 0}, "steps"),
        ({"search_limit": 0}, "search_limit"),
        ({"out": "row.csv"}, ".json"),
        ({"out": "nowhere/row.json"}, "folder"),
    ],
)
def test_what_is_refused(
    net: nn.Sequential, samples: tuple[Tensor, Tensor], change: dict[str, Any], words: str
) -> None:
    given = {"x": samples[0], "y": samples[1], "ball": BALLS["inf"]} | change
    with pytest.raises(pc.PolycertError, match=words):
        pc.evaluate(net, **given)


@pytest.mark.parametrize("change", [{"seconds": 0.0}, {"timeout": -1.0}, {"limit": 0}])
def test_efforts_that_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(pc.PolycertError, match="exact verdicts"):
        ExactSettings(**change)


# Files


def same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return {k: v for k, v in first.items() if k not in ("seconds", "command")} == {
        k: v for k, v in second.items() if k not in ("seconds", "command")
    }


def test_files(net: nn.Sequential, samples: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    found = pc.evaluate(net, *samples, BALLS["inf"], samples=True, out=tmp_path / "row.json")
    assert {p.name for p in tmp_path.iterdir()} == {"row.json", "row.samples.parquet", "row.examples.npz"}
    assert json.loads((tmp_path / "row.json").read_text()) == json.loads(json.dumps(found.record))
    frame = pd.read_parquet(tmp_path / "row.samples.parquet")
    assert list(frame.columns) == COLUMNS
    assert frame["status"].isna().all()
    assert frame["largest"].to_numpy() == pytest.approx(found.columns["largest"])
    with np.load(tmp_path / "row.examples.npz") as arrays:
        right = found.columns["prediction"] == found.columns["label"]
        order = [k for k in np.argsort(found.columns["largest"], kind="stable") if right[k]]
        assert 48 < len(order) < len(right)
        assert set(arrays["index"]) == {*order[:24], *order[-24:]}
        assert arrays["input"].dtype == arrays["counterexample"].dtype == np.float32
        assert (arrays["input"] == samples[0].numpy()[arrays["index"]]).all()
        assert found.points is not None
        np.testing.assert_array_equal(arrays["counterexample"], found.points[arrays["index"]])


measure = measurements.measure


def test_slices_of_another_question_are_not_taken_over(
    net: nn.Sequential, samples: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SLICE", 20)

    def stop(done: int, total: int, text: str) -> None:
        if done >= 40 and text.startswith("PGD"):
            raise KeyboardInterrupt

    out = tmp_path / "row.json"
    with pytest.raises(KeyboardInterrupt):
        pc.evaluate(net, *samples, BALLS["inf"], out=out, progress=stop)
    assert len(list((tmp_path / "row.parts").iterdir())) == 2
    measured: list[int] = []
    monkeypatch.setattr(store, "measure", lambda task, stage: measured.append(len(task)) or measure(task, stage))
    pc.evaluate(net, *samples, BALLS["inf"].with_eps(0.05), out=out)
    assert sum(measured) == 90
    assert [p.name for p in tmp_path.iterdir()] == ["row.json"]


def test_an_interrupted_evaluation_goes_on(
    net: nn.Sequential, samples: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SLICE", 20)
    whole = pc.evaluate(net, *samples, BALLS["inf"], samples=True)
    measured: list[int] = []

    def until_the_third(task: Any, stage: Any) -> measurements.Measurements:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(len(task))
        return measure(task, stage)

    out = tmp_path / "row.json"
    monkeypatch.setattr(store, "measure", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        pc.evaluate(net, *samples, BALLS["inf"], samples=True, out=out)
    assert [p.name for p in tmp_path.iterdir()] == ["row.parts"]
    left: list[int] = []
    monkeypatch.setattr(store, "measure", lambda task, stage: left.append(len(task)) or measure(task, stage))
    again = pc.evaluate(net, *samples, BALLS["inf"], samples=True, out=out)
    assert left == [20, 20, 10]
    assert same(whole.record, again.record)
    pd.testing.assert_frame_equal(whole.to_frame(), again.to_frame())
    assert not (tmp_path / "row.parts").exists()


def test_shares_of_processes_make_the_evaluation_of_one(
    net: nn.Sequential, samples: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SLICE", 20)
    settings = EvaluationSettings(upper=4 * EPS, samples=True)
    question, exact = make_question(net, *samples, BALLS["inf"], settings), ExactSettings(timeout=20)
    sent: list[Any] = []

    class Second(Processes):
        def gather(self, items: list[Any]) -> list[Any]:
            sent.extend(items)
            return []

    class First(Processes):
        def gather(self, items: list[Any]) -> list[Any]:
            return [*items, *sent]

    assert run(question, {}, exact, tmp_path / "two.json", Second(1, 2)) is None
    both = run(question, {}, exact, tmp_path / "two.json", First(0, 2))
    one = run(question, {}, exact, None, ALONE)
    assert both is not None
    assert one is not None
    assert same(one.record, both.record)
    pd.testing.assert_frame_equal(one.to_frame(), both.to_frame())


# Command line


def polycert(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(net: nn.Sequential, samples: tuple[Tensor, Tensor], tmp_path: Path) -> Path:
    pc.save(net, tmp_path / "net.safetensors", LAYERS, (4,))
    np.savez(tmp_path / "samples.npz", x=samples[0].numpy(), y=samples[1].numpy())
    np.savez(tmp_path / "unlabelled.npz", x=samples[0].numpy())
    return tmp_path


def own(folder: Path, *more: object) -> Result:
    given = ["--inputs", folder / "samples.npz", "--low", 0, "--high", 1]
    return polycert("evaluate", folder / "net.safetensors", *given, *more)


def test_the_command_writes_what_the_library_gives(
    folder: Path, net: nn.Sequential, samples: tuple[Tensor, Tensor]
) -> None:
    out = folder / "row.json"
    result = own(folder, "--eps", EPS, "--norm", 2, "--out", out, "--samples", "--exact", "inf", "--workers", 1)
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    expected = pc.evaluate(net, *samples, BALLS["2"], samples=True, exact=math.inf).record
    for name in CONTRACT:
        if name != "seconds":
            assert record[name] == expected[name], name
    assert record["model"] == "net"
    assert record["command"].startswith("polycert evaluate ")
    assert record["command"].endswith("--norm 2 --low 0 --high 1 --eps 0.04 --exact inf --samples")
    assert "CRE_exact" in result.stdout
    assert (folder / "row.samples.parquet").exists()


def test_a_run_says_what_it_was_trained_for(folder: Path) -> None:
    torch.manual_seed(0)
    made = folder / "runs" / "mine"
    made.mkdir(parents=True)
    architecture = fc1((1, 28, 28), hidden=8)
    pc.save(build(architecture), made / "model.safetensors", architecture, (1, 28, 28))
    (made / "recipe.toml").write_text(to_toml({**RECIPE, "target": 0.02, "seed": 7}), encoding="utf-8")
    rows = [{"epoch": k, "loss": 1 / k, "seconds": 90.0 * k, "seconds_cpu": 60.0 * k} for k in (1, 2)]
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"epoch": 3, "lo')
    result = polycert("evaluate", made / "model.safetensors", "--limit", 6, "--out", made / "evaluation.json")
    assert result.exit_code == 0, result.output
    record = json.loads((made / "evaluation.json").read_text())
    facts = {"model": "mine", "dataset": "mnist-sample", "architecture": "fc1", "activation": "relu", "norm": "inf"}
    facts |= {"eps": 0.02, "method": "c-per+at", "seed": 7, "n": 6, "upper": 0.08}
    assert {name: record[name] for name in facts} == facts
    training = record["training"]
    assert training["command"] == f"polycert train recipe.toml --run-dir {made}"
    assert training["recipe"]["seed"] == 7
    assert training["metrics"] == rows
    assert (training["epochs"], training["minutes_wall"], training["minutes_cpu"]) == (2, 3.0, 2.0)


def test_a_recipe_of_the_library_is_known_by_its_name() -> None:
    for overrides, told in (([], "mnist-cnn-l2-kw"), (["seed=3"], "mnist-cnn-l2-kw --set seed=3")):
        assert command_for(read_recipe("mnist-cnn-l2-kw", overrides), "recipe.toml") == f"polycert train {told}"
    assert command_for(read_recipe("mnist-cnn-l2-kw", ["epochs=3"]), "recipe.toml") == "polycert train recipe.toml"


def test_an_index_marks_what_leaked(folder: Path, net: nn.Sequential) -> None:
    np.savez(folder / "it.npz", **{key: value.numpy() for key, value in net.state_dict().items()})
    entry = {
        "file": "it.npz",
        "arch": LAYERS,
        "input_shape": [4],
        "dataset": "mnist",
        "arch_name": "FC1",
        "activation": "relu",
        "norm": "l2",
        "eps": EPS,
        "method": "C-PER+at",
        "test_leak": {"batch": 2, "start": 0, "stop": 1},
    }
    (folder / "index.json").write_text(json.dumps({"models": {"it": entry}}), encoding="utf-8")
    out = folder / "row.json"
    samples = ["--inputs", folder / "samples.npz", "--indices", "10:40", "--low", 0, "--high", 1]
    result = polycert("evaluate", folder / "it.npz", *samples, "--out", out, "--name", "other")
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert (record["model"], record["method"], record["norm"], record["eps"]) == ("other", "c-per+at", "2", EPS)
    assert record["clean_half"]["n"] == 15
    assert "dataset" not in record
    assert record["minimum"] == "either"


def test_the_papers_architectures_are_recognised(folder: Path) -> None:
    for name, make in ARCHITECTURES.items():
        architecture = make((1, 28, 28), 10, "tanh")
        pc.save(build(architecture), folder / "a.safetensors", architecture, (1, 28, 28))
        expected = {"model": "a", "architecture": name, "activation": "tanh"}
        assert about_model(str(folder / "a.safetensors")) == expected
    assert about_model(str(folder / "net.safetensors")) == {"model": "net"}


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["--eps", 0.1, "--out", "row.csv"], 2, ".json"),
        (["--out", "row.json"], 2, "--eps"),
        (["--eps", 0.1, "--samples"], 2, "--out"),
        (["--eps", 0.1, "--exact", 0], 2, "above 0"),
        (["--eps", 0.1, "--minimum", "least"], 2, "minimum"),
        (["--eps", 0.1, "--upper", 0], 2, "upper"),
    ],
)
def test_what_the_command_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], status: int, word: str
) -> None:
    monkeypatch.chdir(folder)
    before = set(folder.iterdir())
    result = own(folder, *arguments)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr
    assert set(folder.iterdir()) == before


def test_labels_are_needed(folder: Path) -> None:
    result = polycert("evaluate", folder / "net.safetensors", "--inputs", folder / "unlabelled.npz", "--eps", 0.1)
    assert result.exit_code == 1
    assert "labels" in result.stderr


def test_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    result = own(folder, "--eps", EPS, "--out", folder / "row.json")
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    assert not (folder / "row.json").exists()


@pytest.mark.slow
def test_two_processes_write_the_record_of_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    architecture = fc1((1, 28, 28), hidden=8)
    pc.save(build(architecture), tmp_path / "net.safetensors", architecture, (1, 28, 28))
    common = [str(tmp_path / "net.safetensors"), "--dataset", "mnist", "--limit", "2000", "--eps", "0.01", "--samples"]
    done = twice("evaluate", *common, "--out", str(tmp_path / "two.json"))
    assert done.returncode == 0, done.stderr
    assert polycert("evaluate", *common, "--out", tmp_path / "one.json").exit_code == 0
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert one["n"] == 2000
    assert same(one, two)
    frames = [pd.read_parquet(tmp_path / f"{name}.samples.parquet") for name in ("one", "two")]
    pd.testing.assert_frame_equal(*frames)
