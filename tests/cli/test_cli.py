"""The command line as a user meets it: exit statuses, one-sentence errors, records that read back."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import polycert as pc
from polycert.bounding.methods import METHODS
from polycert.bounding.relaxations import RELAXATIONS
from polycert.certification.radius import STRATEGIES, largest_radius
from polycert.cli import app, demo, option_values
from polycert.cli import certify as prove
from polycert.cli.exit_status import BadUsage
from polycert.models.architectures import build, fc1

SHAPE = (1, 28, 28)
SMALL = (3,)
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".json": lambda path: pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))),
    ".parquet": pd.read_parquet,
}
ARCHITECTURE = [
    {"type": "linear", "in_features": 3, "out_features": 8},
    {"type": "relu"},
    {"type": "linear", "in_features": 8, "out_features": 3},
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a digit classifier, a tabular one, and samples for the latter."""
    folder = tmp_path_factory.mktemp("cli")
    torch.manual_seed(0)
    architecture = fc1(SHAPE, hidden=16)
    pc.save(build(architecture), folder / "digits.safetensors", architecture, SHAPE)
    pc.save(build(ARCHITECTURE), folder / "small.safetensors", ARCHITECTURE, SMALL)
    rng = np.random.default_rng(0)
    np.savez(folder / "samples.npz", x=rng.random((20, 3), dtype=np.float32), y=rng.integers(0, 3, 20))
    return folder


def polycert(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def certify(files: Path, *more: object) -> Result:
    return polycert("certify", files / "small.safetensors", "--inputs", files / "samples.npz", "--eps", 0.05, *more)


def radius(files: Path, *more: object) -> Result:
    return polycert("radius", files / "small.safetensors", "--inputs", files / "samples.npz", *more)


def write_samples(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def assert_refused(result: Result, status: int, *words: str) -> None:
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("error: ")
    for word in words:
        assert word in result.stderr


# What works


def test_version() -> None:
    result = polycert("--version")
    assert (result.exit_code, result.stdout) == (0, f"polycert {pc.__version__}\n")


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, polycert.cli as cli; print('torch' in sys.modules, 'pandas' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_public_names_are_there_when_asked_for() -> None:
    stub = ast.parse(Path(pc.__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body[-1]
    assert isinstance(stub, ast.Assign)
    assert sorted(pc.__all__) == sorted(ast.literal_eval(stub.value))
    modules = {name for name in pc.__all__ if inspect.ismodule(getattr(pc, name))}
    assert modules == {"data", "exact", "losses", "zoo"}
    with pytest.raises(AttributeError):
        pc.nothing_of_this_name  # noqa: B018


@pytest.mark.parametrize(
    "command", ["certify", "radius", "verify", "attack", "evaluate", "zoo", "report", "data", "demo"]
)
def test_every_command_has_an_example(command: str) -> None:
    result = polycert(command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"polycert {command}" in result.stdout.split("Examples:")[1]


def test_help_names_every_choice() -> None:
    text = polycert("radius", "--help").stdout
    for name in (*METHODS, *RELAXATIONS, "best", *STRATEGIES, *pc.data.NAMES):
        assert name in text


@pytest.mark.parametrize("suffix", READERS)
def test_certify_writes_what_the_library_gives(files: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"records{suffix}"
    result = certify(files, "--norm", 2, "--low", 0, "--high", 1, "--out", out)
    assert result.exit_code == 0, result.output
    samples = np.load(files / "samples.npz")
    ball = pc.Ball(2.0, 0.05, 0.0, 1.0)
    expected = pc.certify(pc.load(files / "small.safetensors"), samples["x"], samples["y"], ball).to_frame()
    back = READERS[suffix](out)
    assert back["radius"].to_numpy() == pytest.approx(expected["radius"].to_numpy(), rel=1e-12)
    for name in ("index", "label", "prediction", "certified", "status", "method", "relaxation", "rigorous"):
        assert list(back[name]) == list(expected[name]), name
    assert {str(norm) for norm in back["norm"]} == {"2"}
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("suffix", READERS)
def test_radius_writes_what_the_library_gives(files: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"records{suffix}"
    result = radius(files, "--upper", 0.4, "--tolerance", 1e-3, "--strategy", "envelope", "--out", out)
    assert result.exit_code == 0, result.output
    samples, net = np.load(files / "samples.npz"), pc.load(files / "small.safetensors")
    expected = largest_radius(net, samples["x"], samples["y"], upper=0.4, tolerance=1e-3, strategy="envelope")
    back = READERS[suffix](out)
    assert back["radius"].to_numpy() == pytest.approx(expected.radius.numpy(), rel=1e-12)
    assert list(back["evaluations"]) == expected.evaluations.tolist()
    assert set(back["strategy"]) == {"envelope"}
    assert set(back["upper"]) == {0.4}


def test_the_summary_says_what_was_found_and_asked(files: Path) -> None:
    result = certify(files, "--fast", "--method", "ibp")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "small.safetensors on samples.npz, 20 of 20 samples"
    for word in ("CTE", "CRE", "ACB", "certified", "partial", "unproved", "misclassified", "ibp", "no (--fast)", "inf"):
        assert word in result.stdout
    assert result.stderr == ""
    result = radius(files, "--limit", 3)
    for word in ("mean radius", "median radius", "mean evaluations", "root", "seconds"):
        assert word in result.stdout


def test_a_data_set_has_the_box_from_0_to_1(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.csv"
    arguments = ("--dataset", "mnist-sample", "--eps", "2/255", "--limit", 5, "--out", out)
    result = polycert("certify", files / "digits.safetensors", *arguments)
    assert result.exit_code == 0, result.output
    assert "[0, 1]" in result.stdout
    back = pd.read_csv(out)
    assert back["eps"].to_numpy() == pytest.approx(2 / 255)
    assert list(back["label"]) == pc.data.load("mnist-sample").y[:5].tolist()


def test_own_samples_have_no_box_unless_given(files: Path) -> None:
    assert "[-inf, inf]" in certify(files, "--limit", 1).stdout
    assert "[-inf, 1]" in certify(files, "--limit", 1, "--high", 1).stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--indices", "4:8"], [4, 5, 6, 7]),
        (["--indices", "::7"], [0, 7, 14]),
        (["--indices", "3,1,-1"], [3, 1, 19]),
        (["--indices", "2:4, 10"], [2, 3, 10]),
        (["--indices", "5:", "--limit", "2"], [5, 6]),
        (["--limit", "3"], [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("ask", [certify, radius])
def test_records_keep_the_index_in_the_data_set(
    files: Path, tmp_path: Path, ask: Callable[..., Result], options: list[str], expected: list[int]
) -> None:
    out = tmp_path / "records.csv"
    result = ask(files, *options, "--out", out, "--batch-size", 2)
    assert result.exit_code == 0, result.output
    back = pd.read_csv(out)
    assert list(back["index"]) == expected
    assert list(back["label"]) == np.load(files / "samples.npz")["y"][expected].tolist()


def test_batches_and_slices_change_nothing(files: Path, tmp_path: Path) -> None:
    frames = []
    for number, options in enumerate((["--batch-size", 3], ["--memory", "1K"], [])):
        out = tmp_path / f"{number}.csv"
        assert certify(files, *options, "--out", out).exit_code == 0
        frames.append(pd.read_csv(out).drop(columns="seconds"))
    for other in frames[1:]:
        pd.testing.assert_frame_equal(frames[0], other, rtol=1e-5)


def test_without_labels_the_model_has_its_own(files: Path, tmp_path: Path) -> None:
    inputs = write_samples(tmp_path / "x.npz", x=np.load(files / "samples.npz")["x"])
    out = tmp_path / "records.csv"
    result = certify(files, "--inputs", inputs, "--out", out)
    assert result.exit_code == 0
    assert "no labels" in result.stdout
    back = pd.read_csv(out)
    assert list(back["label"]) == list(back["prediction"])


@pytest.mark.parametrize("dtype", [">f4", "<f8", "f2", "u1", ">i4"])
def test_samples_of_any_real_type(files: Path, tmp_path: Path, dtype: str) -> None:
    inputs = write_samples(tmp_path / "x.npz", x=np.ones((2, 3), dtype=dtype), y=np.zeros(2, dtype="u8"))
    assert certify(files, "--inputs", inputs).exit_code == 0


def test_a_factory_in_the_working_folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"nets_of_{abs(hash(tmp_path))}"
    code = (
        "from torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)), (3,)\n"
    )
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    torch.save(module.state_dict(), tmp_path / "w.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ("--weights", "w.pt", "--inputs", files / "samples.npz", "--eps", 0.1)
    result = polycert("certify", f"{name}:net", *arguments)
    assert result.exit_code == 0, result.output


def test_threads_are_set_by_the_command_line(files: Path) -> None:
    before = torch.get_num_threads()
    try:
        assert certify(files, "--limit", 1, "--threads", 1).exit_code == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_data_prints_the_folder() -> None:
    result = polycert("data", "mnist-sample")
    assert result.exit_code == 0
    assert (Path(result.stdout.strip()) / "mnist_sample.npz").is_file()


def test_demo_runs_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run", lambda folder, report: report(f"[bold] is kept: {folder.name}"))
    assert polycert("demo", "--out", tmp_path / "here").stdout == "[bold] is kept: here\n"
    assert polycert("demo", "--out", tmp_path / "here", "--quiet").stdout == ""


# Bad usage: status 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--eps", "-0.1"], ["eps", ">= 0"]),
        (["--eps", "nan"], ["eps"]),
        (["--eps", "tiny"], ["--eps", "2/255", "'tiny'"]),
        (["--eps", "1/0"], ["--eps"]),
        (["--norm", "0.5"], ["norm must be at least 1"]),
        (["--norm", "two"], ["--norm"]),
        (["--low", "1", "--high", "0"], ["low must not be above high"]),
        (["--method", "magic"], ["unknown method 'magic'", "crown"]),
        (["--relaxation", "none"], ["unknown relaxation 'none'", "parallel"]),
        (["--method", "forward", "--relaxation", "adaptive"], ["forward"]),
        (["--out", "records.txt"], ["records.txt", ".csv"]),
        (["--out", "no_such_folder_here/records.csv"], ["folder does not exist"]),
        (["--memory", "lots"], ["--memory", "500M"]),
        (["--device", "abacus"], ["--device"]),
        (["--indices", "a:b"], ["--indices"]),
        (["--indices", "1:2:3:4"], ["--indices"]),
        (["--indices", "99"], ["no sample 99 among 20"]),
        (["--indices", "5:5"], ["selects none"]),
        (["--data-dir", "no_such_folder_here"], ["--data-dir"]),
        (["--dataset", "mnist"], ["either --dataset NAME or --inputs FILE"]),
    ],
)
def test_bad_values_are_bad_usage(files: Path, options: list[str], words: list[str]) -> None:
    assert_refused(certify(files, *options), 2, *words)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--strategy", "luck"], "unknown strategy 'luck'"),
        (["--upper", "0"], "--upper"),
        (["--upper", "inf"], "--upper"),
        (["--tolerance", "2"], "--tolerance"),
    ],
)
def test_bad_values_of_radius_are_bad_usage(files: Path, options: list[str], word: str) -> None:
    assert_refused(radius(files, *options), 2, word)


def test_unknown_data_sets_are_bad_usage(files: Path) -> None:
    arguments = ("--dataset", "imagenet", "--eps", 0.1)
    assert_refused(polycert("certify", files / "digits.safetensors", *arguments), 2, "'imagenet'", "mnist")
    assert_refused(polycert("data", "imagenet"), 2, "'imagenet'", "mnist")


def test_weights_for_a_file_are_bad_usage(files: Path) -> None:
    assert_refused(certify(files, "--weights", files / "small.safetensors"), 2, "--weights")


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["certify"], ["certify", "m", "--nonsense"], ["certify", "m", "--eps", "1", "--limit", "0"]],
)
def test_usage_errors_of_typer(arguments: list[str]) -> None:
    result = polycert(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert "Traceback" not in result.stderr


# Failures: status 1


def test_a_missing_model(files: Path) -> None:
    result = polycert("certify", files / "no.safetensors", "--inputs", files / "samples.npz", "--eps", 0.1)
    assert_refused(result, 1, "there is no file")


def test_a_truncated_model(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes((files / "small.safetensors").read_bytes()[:-20])
    result = polycert("certify", path, "--inputs", files / "samples.npz", "--eps", 0.1)
    assert_refused(result, 1, "cannot read net.safetensors")


def test_a_model_that_does_not_take_its_own_shape(files: Path, tmp_path: Path) -> None:
    pc.save(build(ARCHITECTURE), tmp_path / "net.safetensors", ARCHITECTURE, (4,))
    result = polycert("certify", tmp_path / "net.safetensors", "--inputs", files / "samples.npz", "--eps", 0.1)
    assert_refused(result, 1, "cannot be traced")


@pytest.mark.parametrize("name", ["no_such_module_here:net", "json:no_such_function", "net.txt"])
def test_a_factory_that_does_not_exist(files: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = polycert("certify", name, "--inputs", files / "samples.npz", "--eps", 0.1)
    assert_refused(result, 1, name)


def test_a_factory_in_half_precision(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"half_of_{abs(hash(tmp_path))}"
    code = "from torch import nn\ndef net():\n    return nn.Linear(3, 3).half(), (3,)\n"
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = polycert("certify", f"{name}:net", "--inputs", files / "samples.npz", "--eps", 0.1)
    assert_refused(result, 1, "float32 or float64")


def test_missing_samples(files: Path) -> None:
    assert_refused(certify(files, "--inputs", files / "no.npz"), 1, "no.npz")


X = np.zeros((2, 3), dtype=np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.array([{}, {}], dtype=object)}, ["Python objects"]),
        ({"x": X, "y": np.array([{}, {}], dtype=object)}, ["Python objects"]),
        ({"x": np.zeros((2, 4), dtype=np.float32)}, ["(4,)", "(3,)"]),
        ({"x": np.zeros(3, dtype=np.float32)}, ["[n, …]"]),
        ({"x": np.zeros((0, 3), dtype=np.float32)}, ["[n, …]"]),
        ({"z": X}, ["[n, …]"]),
        ({"x": X.astype(complex)}, ["real numbers"]),
        ({"x": np.full((2, 3), "a")}, ["real numbers"]),
        ({"x": np.full((2, 3), np.nan)}, ["NaN"]),
        ({"x": np.full((2, 3), np.inf)}, ["infinite"]),
        ({"x": X, "y": np.array([0, 3])}, ["labels must be in 0"]),
        ({"x": X, "y": np.array([0, -1])}, ["labels must be in 0"]),
        ({"x": X, "y": np.array([0.0, 1.0])}, ["integers"]),
        ({"x": X, "y": np.array([0, 1, 2])}, ["2 samples but 3 labels"]),
        ({"x": X, "y": np.zeros((2, 3), dtype=np.int64)}, ["labels"]),
    ],
)
def test_bad_samples(files: Path, tmp_path: Path, arrays: dict[str, Any], words: list[str]) -> None:
    assert_refused(certify(files, "--inputs", write_samples(tmp_path / "bad.npz", **arrays)), 1, *words)


def test_samples_that_are_no_npz(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(pickle.dumps({"x": X}))
    assert_refused(certify(files, "--inputs", path), 1, "never loaded")
    with path.open("wb") as file:
        np.save(file, X)
    assert_refused(certify(files, "--inputs", path), 1, "single array")
    whole = (files / "samples.npz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert_refused(certify(files, "--inputs", path), 1, "bad.npz")


@pytest.mark.parametrize("ask", [certify, radius])
def test_samples_outside_the_box(files: Path, ask: Callable[..., Result]) -> None:
    assert_refused(ask(files, "--low", 0.5, "--high", 1), 1, "outside the box")


def test_all_samples_are_checked_before_any_work(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((50, 3), dtype=np.float32)
    x[-1] = np.nan
    monkeypatch.setattr(prove, "certify", lambda *_, **__: pytest.fail("work was done"))
    inputs = write_samples(tmp_path / "bad.npz", x=x)
    assert_refused(certify(files, "--inputs", inputs, "--batch-size", 1), 1, "NaN")


def test_no_way_to_the_data(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any) -> None:
        raise pc.PolycertError("cannot fetch mnist: no network")

    monkeypatch.setattr(pc.data.datasets, "_obtain", offline)
    arguments = ("--dataset", "mnist", "--eps", 0.1)
    assert_refused(polycert("certify", files / "digits.safetensors", *arguments), 1, "cannot fetch mnist")
    assert_refused(polycert("data", "mnist"), 1, "cannot fetch mnist")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …"), ["out of memory", "--batch-size"]),
        (MemoryError(), ["out of memory"]),
        (ZeroDivisionError("oops\nand more"), ["unexpected ZeroDivisionError: oops", "--debug"]),
        (OSError(28, "No space left on device", "records.csv"), ["No space left on device: records.csv"]),
    ],
)
def test_a_failure_halfway_is_a_sentence_and_leaves_the_old_records(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: list[str]
) -> None:
    out = tmp_path / "records.csv"
    out.write_text("old\n", encoding="utf-8")
    monkeypatch.setattr(prove, "certify", failing_after(1, error))
    assert_refused(certify(files, "--batch-size", 2, "--out", out), 1, *words)
    assert out.read_text(encoding="utf-8") == "old\n"
    assert list(tmp_path.iterdir()) == [out]


def test_debug_shows_the_traceback(files: Path) -> None:
    result = certify(files, "--method", "magic", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: unknown method")


# Ctrl-C: status 130


def failing_after(calls: int, error: BaseException) -> Callable[..., pc.Certificates]:
    """`certify` that raises once it has answered so often."""
    left = [calls]

    def ask(*arguments: Any, **options: Any) -> pc.Certificates:
        if not left[0]:
            raise error
        left[0] -= 1
        return pc.certify(*arguments, **options)

    return ask


def test_ctrl_c_keeps_what_is_finished(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, whole = tmp_path / "records.csv", tmp_path / "whole.csv"
    assert certify(files, "--batch-size", 2, "--out", whole).exit_code == 0
    monkeypatch.setattr(prove, "certify", failing_after(2, KeyboardInterrupt()))
    result = certify(files, "--batch-size", 2, "--out", out)
    assert result.exit_code == 130
    back = pd.read_csv(out).drop(columns="seconds")
    assert 2 < len(back) < 20
    pd.testing.assert_frame_equal(back, pd.read_csv(whole).drop(columns="seconds").head(len(back)))
    assert f"interrupted: {len(back)} of 20 samples were finished, written to {out}" in result.stderr
    assert f"{len(back)} of 20 samples" in result.stdout


def test_ctrl_c_before_anything_is_finished(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "certify", failing_after(0, KeyboardInterrupt()))
    assert_refused(certify(files, "--out", tmp_path / "records.csv"), 130, "interrupted")
    assert list(tmp_path.iterdir()) == []


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "polycert", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_as_a_module_and_into_a_closed_pipe(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.csv"
    arguments = ("--inputs", files / "samples.npz", "--eps", 0.1, "--out", out, "--quiet")
    process = start("certify", files / "small.safetensors", *arguments)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait()
    assert len(pd.read_csv(out)) == 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_real_ctrl_c(files: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((200_000, 3), dtype=np.float32)
    inputs, out = write_samples(tmp_path / "many.npz", x=x), tmp_path / "records.csv"
    arguments = ("--inputs", inputs, "--eps", 0.1, "--batch-size", 1, "--out", out)
    process = start("certify", files / "small.safetensors", *arguments)
    time.sleep(30)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert len(errors.splitlines()) == 1
    assert f"{len(pd.read_csv(out))} of 200000 samples were finished" in errors


# Option values


@pytest.mark.parametrize(
    ("text", "value"), [("0.1", 0.1), ("2/255", 2 / 255), ("1e-4", 1e-4), ("inf", float("inf")), ("-1", -1.0)]
)
def test_numbers(text: str, value: float) -> None:
    assert option_values.number(text, "--eps") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("500M", 500 * 2**20), ("2G", 2**31), ("1.5GiB", 3 * 2**29), ("64kb", 2**16), ("1000", 1000), (None, None)],
)
def test_sizes(text: str | None, value: int | None) -> None:
    assert option_values.size(text) == value


@pytest.mark.parametrize("text", ["", "M", "0", "-1G", "1X", "0.1"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(BadUsage, match="--memory"):
        option_values.size(text)
