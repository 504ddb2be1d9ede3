"""The report as text: what is in it, what it refuses, what it weighs."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image
from typer.testing import CliRunner

import polycert as pc
from polycert.cli import app
from polycert.records.figures import STATUSES
from polycert.report import write_report
from polycert.report.page import PagePart
from polycert.report.runs import gather
from polycert.report.samples import DOWN, data_uri, pack, pack_samples
from tests.helpers.report_files import record, samples, write_evaluation, write_training

NASTY = "</script><b onclick='x'>&\"\u2028"


def page_of(*paths: Path, out: Path) -> str:
    write_report(paths, out)
    return out.read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def unpack(column: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """As the page's script does it, written once more."""
    codes = np.frombuffer(base64.b64decode(column["data"]), dtype=f"<u{column['bits'] // 8}").astype(float)
    values = (column["base"] + codes) / 10 ** column["digits"]
    return np.where(codes == 2 ** column["bits"] - 1, np.nan, values)


# What is in it


def test_a_page_has_the_record_and_the_samples(tmp_path: Path) -> None:
    page = page_of(write_evaluation(tmp_path / "one.json"), out=tmp_path / "r.html")
    for text in ("made-up", "12.75", "[10.80, 15.00]", "0.0931"):
        assert text in page
    model = data_of(page)["models"][0]
    assert model["count"] == 200
    assert [card["value"] for card in model["cards"]] == ["2.00 %", "7.25 %", "12.75 %", "0.0931", "0.1412"]
    assert len(model["pictures"]["hardest"]) == len(model["pictures"]["easiest"]) == 12
    assert "tablist" not in page


def test_the_page_loads_nothing_and_allows_only_its_own_script(tmp_path: Path) -> None:
    page = page_of(write_evaluation(tmp_path / "one.json"), out=tmp_path / "r.html")
    tags = Tags(page).found
    for tag, attributes in tags:
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    policy = next(a["content"] for t, a in tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        inline = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert inline is not None
        digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.search(r"url\(|@import|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)
    assert "style=" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_names_are_text_wherever_they_come_from(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "run", dataset=NASTY)
    write_evaluation(folder / "evaluation.json", model=NASTY, dataset=NASTY, method=NASTY, command=NASTY, version=NASTY)
    plain = page_of(write_evaluation(tmp_path / "one.json"), out=tmp_path / "p.html")
    page = page_of(folder, out=tmp_path / "r.html")
    assert "<b onclick" not in page
    assert page.count("</script>") == plain.count("</script>")
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]  # type: ignore[index]
    assert data_of(page)["models"][0]["name"] == NASTY
    assert html.escape(NASTY) in page.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")


def test_several_models_and_the_clean_half(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "a.json", model="first")
    leaky = record(model="second", clean_half={"CTE": 3.5, "CRE_Lin": 15.25, "n": 500})
    (tmp_path / "b.json").write_text(json.dumps(leaky), encoding="utf-8")
    write_training(tmp_path / "c")
    page = page_of(tmp_path, out=tmp_path / "r.html")
    assert [model["name"] for model in data_of(page)["models"]] == ["first", "second", "c"]
    assert "clean half" in page
    assert "15.25" in page
    assert "not evaluated yet" in page


def test_models_of_one_name_are_told_apart_and_measurements_are_no_models(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(record()), encoding="utf-8")
    single = {"model": "measured", "dataset": "mnist", "norm": "inf", "eps": 0.1, "n": 5, "iterations": {"2": 45}}
    (tmp_path / "c.json").write_text(json.dumps(single), encoding="utf-8")
    page = page_of(tmp_path, out=tmp_path / "r.html")
    assert re.findall(r"<option value=\"\d\">(.*?)</option>", page) == [f"made-up ({tmp_path / n}.json)" for n in "ab"]
    parted = tmp_path / "parted.html"
    write_report([tmp_path], parted, [lambda runs: PagePart("more", "More", Markup("{} runs").format(len(runs)))])
    assert "3 runs" in parted.read_text(encoding="utf-8")


def test_hardest_are_samples_that_are_right(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json", count=500)
    frame = samples(500)
    wrong = set(frame["index"][frame["label"] != frame["prediction"]])
    found = data_of(page_of(path, out=tmp_path / "r.html"))["models"][0]["pictures"]
    hardest = [entry["index"] for entry in found["hardest"]]
    right = frame[frame["label"] == frame["prediction"]]
    assert wrong
    assert hardest == right.sort_values("largest", kind="stable")["index"][:12].tolist()
    assert [entry["index"] for entry in found["easiest"]] == frame.sort_values("largest")["index"][::-1][:12].tolist()
    assert all(("counterexample" in entry) == (name == "hardest") for name in found for entry in found[name])


def test_a_run_is_taken_once_however_often_it_is_given(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json")
    assert len(gather([path, tmp_path, path])) == 1


def test_training_curves_from_a_run_folder_and_from_a_record(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "run", epochs=7)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 8, "lo')  # killed while writing
    assert data_of(page_of(folder, out=tmp_path / "r.html"))["models"][0]["curves"]["epoch"] == list(range(1, 8))
    own = record(training={"metrics": [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]})
    (tmp_path / "own.json").write_text(json.dumps(own), encoding="utf-8")
    page = page_of(tmp_path / "own.json", out=tmp_path / "r.html")
    assert data_of(page)["models"][0]["curves"] == {"epoch": [1, 2], "loss": [0.5, 0.25]}


def test_what_is_missing_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "bare.json").write_text(json.dumps(record()), encoding="utf-8")
    model = data_of(page_of(tmp_path / "bare.json", out=tmp_path / "r.html"))["models"][0]
    assert model["samples"] is None
    assert "polycert evaluate MODEL … --samples" in model["missing"]["samples"]
    assert "polycert train" in model["missing"]["curves"]
    path = write_evaluation(tmp_path / "flat.json", shape=(7,))
    model = data_of(page_of(path, out=tmp_path / "r.html"))["models"][0]
    assert model["pictures"] == {}
    assert "not images" in model["missing"]["pictures"]


def test_the_shares_of_samples_add_up(tmp_path: Path) -> None:
    frame = samples(500)
    model = data_of(page_of(write_evaluation(tmp_path / "a.json", count=500), out=tmp_path / "r.html"))["models"][0]
    assert sum(model["shares"].values()) == pytest.approx(100)
    assert model["shares"]["proved"] == pytest.approx(100 * frame["certified"].mean())
    wrong = frame["label"] != frame["prediction"]
    assert model["shares"]["wrong"] == pytest.approx(100 * wrong.mean())
    assert model["shares"]["broken"] == pytest.approx(100 * (frame["attacked"] & ~wrong).mean())
    assert model["headline"].startswith(f"{model['shares']['proved']:.1f} % of 500 samples are proved")


def test_what_is_not_known_is_not_proved(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json", count=20)
    frame = samples(20).astype({"certified": object})
    frame.loc[:, "certified"] = None
    frame.drop(columns=["certified_crown", "certified_ibp", "status"]).to_parquet(tmp_path / "a.samples.parquet")
    model = data_of(page_of(path, out=tmp_path / "r.html"))["models"][0]
    assert model["shares"]["proved"] == 0


def test_a_contradiction_between_proof_and_attack_is_told(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json", count=50)
    assert data_of(page_of(path, out=tmp_path / "r.html"))["models"][0]["contradictions"] == 0
    frame = samples(50)
    frame.loc[[3, 4], "attack_radius"] = frame.loc[[3, 4], "largest"] * 0.9
    frame.to_parquet(tmp_path / "a.samples.parquet")
    assert data_of(page_of(path, out=tmp_path / "r.html"))["models"][0]["contradictions"] == 2


# Numbers


def test_packed_radii_are_never_above_the_true_ones(tmp_path: Path) -> None:
    frame = samples(3000)
    frame.loc[:9, "largest"] = [0.1, np.nextafter(0.1, 0), np.nextafter(0.1, 1), 0.3, 0.07, 0.14, 0.29, 0.0, 1e-9, 0.4]
    packed = pack_samples(frame)
    for name in ("largest", "radius", "margin"):
        found, true = unpack(packed[name]), frame[name].to_numpy()
        assert (found <= true).all(), name
        step = 10.0 ** -packed[name]["digits"]
        assert (true - found < step * (1 + 1e-9)).all(), name
    assert unpack(packed["largest"])[:3].tolist() == [0.1, 0.09999, 0.1]
    attack = unpack(packed["attack_radius"])
    assert (np.isnan(attack) == frame["attack_radius"].isna()).all()
    assert (
        np.nanmax(np.abs(attack - frame["attack_radius"])) <= 0.5 * 10.0 ** -packed["attack_radius"]["digits"] * 1.001
    )
    for name in ("index", "label", "prediction", "nearest", "certified"):
        assert (unpack(packed[name]) == frame[name]).all(), name
    status = [STATUSES[int(code)] for code in unpack(packed["status"])]
    assert status == frame["status"].tolist()


@pytest.mark.parametrize(
    "values",
    [[0.0], [5.0, 5.0], [np.nan, np.nan], [-3e-5, 2e5], [1e-12, 3e-12], [np.inf, 0.5, -np.inf], [0, 65534], [0, 65535]],
)
def test_columns_of_any_range(values: list[float]) -> None:
    true = np.array(values, dtype=np.float64)
    packed = pack(true, DOWN)
    found, known = unpack(packed), np.isfinite(true)
    assert (np.isnan(found) == ~known).all()
    assert (found[known] <= true[known]).all()
    assert (true[known] - found[known] <= 10.0 ** -packed["digits"]).all()


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (3, 5, 4)])
def test_images_are_what_the_arrays_are(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data_uri(array).split(",")[1]))))
    expected = array if len(shape) == 2 else array[0] if shape[0] == 1 else np.moveaxis(array, 0, -1)
    np.testing.assert_array_equal(picture, np.round(255 * expected))


def test_ten_thousand_samples_stay_small(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    write_report([write_evaluation(tmp_path / "a.json", count=10_000, shape=(3, 32, 32))], out)
    size = out.stat().st_size / 1e6
    print(f"{size:.2f} MB for 10,000 samples with CIFAR-sized pictures")
    assert size < 1.5


# What it refuses


def broken(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "{", ["a.json", "not JSON"]),
        ("a.json", "[1, 2]", ["not a record", "polycert evaluate"]),
        ("a.json", '{"model": "x"}', ["not a record", "eps"]),
        ("a.json", '{"model": "x", "norm": "inf", "eps": "0.1", "n": 5}', ["not a record", "numbers"]),
        ("a.csv", "x", [".json", "a.csv"]),
    ],
)
def test_files_that_are_no_records(tmp_path: Path, name: str, content: str, words: list[str]) -> None:
    with pytest.raises(pc.PolycertError) as caught:
        write_report([broken(tmp_path, name, content)], tmp_path / "r.html")
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("companion", "words"),
    [("a.samples.parquet", ["parquet", "--samples"]), ("a.examples.npz", ["a.examples.npz", "--samples"])],
)
def test_companions_that_cannot_be_read(tmp_path: Path, companion: str, words: list[str]) -> None:
    path = write_evaluation(tmp_path / "a.json", count=50)
    out = tmp_path / "r.html"
    out.write_text("old")
    broken(tmp_path, companion, b"not what it says")
    with pytest.raises(pc.PolycertError) as caught:
        write_report([path], out)
    assert all(word in str(caught.value) for word in words)
    assert out.read_text() == "old"
    assert sorted(item.suffix for item in tmp_path.iterdir()) == [".html", ".json", ".npz", ".parquet"]


def test_companions_with_other_content(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json", count=50)
    samples(50).drop(columns="label").to_parquet(tmp_path / "a.samples.parquet")
    with pytest.raises(pc.PolycertError, match="lacks the columns of numbers label"):
        gather([path])
    samples(50).astype({"label": str}).to_parquet(tmp_path / "a.samples.parquet")
    with pytest.raises(pc.PolycertError, match="lacks the columns of numbers label"):
        gather([path])
    samples(50).to_parquet(tmp_path / "a.samples.parquet")
    np.savez(tmp_path / "a.examples.npz", index=np.arange(3), input=np.zeros((2, 4)), counterexample=np.zeros((2, 4)))
    with pytest.raises(pc.PolycertError, match=r"index\[k\]"):
        gather([path])


def test_the_command(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json")
    (tmp_path / "empty").mkdir()

    def report(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["report", *map(str, arguments)])

    done = report(path, "--out", tmp_path / "r.html")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "1 run, 200 samples: written to" in done.stderr
    assert report(path, "--out", tmp_path / "r.html", "--quiet").stderr == ""
    for status, arguments, words in (
        (2, (path, "--out", tmp_path / "r.txt"), ".html"),
        (2, (path, "--out", tmp_path / "no" / "r.html"), "make it first"),
        (2, (), "RUNS"),
        (1, (tmp_path / "nowhere", "--out", tmp_path / "s.html"), "there is no"),
        (1, (tmp_path / "empty", "--out", tmp_path / "s.html"), "neither a record nor a training"),
    ):
        refused = report(*arguments)
        assert refused.exit_code == status, refused.stderr
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not (tmp_path / "s.html").exists()
