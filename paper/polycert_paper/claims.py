"""The paper's claims: checks of each against records, commands that make missing records, and a part of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from polycert.report.page import PagePart
from polycert.report.runs import ReportedModel, flag
from polycert_paper.comparisons import difference, has, method_of, pairs, settings, subsample_line, subsampled, value

ENOUGH = 1000  # samples from which a share counts
HOLDS, PARTLY, FAILS, OPEN = "holds", "holds in part", "does not hold", "not measured yet"


class Evidence(NamedTuple):
    """What records show, whether it agrees with the claim (None if it cannot tell), and the files it is from."""

    text: str
    agrees: bool | None
    sources: tuple[str, ...] = ()


Check = Callable[[Sequence[ReportedModel]], Iterator[Evidence]]


class Finding(NamedTuple):
    """The verdict on a claim, all evidence, and what to run for more (commands are between backticks)."""

    verdict: str
    evidence: tuple[Evidence, ...]
    missing: str

    @property
    def sources(self) -> list[str]:
        """The files of the evidence, each once."""
        return list(dict.fromkeys(source for item in self.evidence for source in item.sources))


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what counts as agreement, and the checks of its parts with what each needs."""

    text: str
    measure: str
    parts: tuple[tuple[Check, str], ...]

    def check(self, runs: Sequence[ReportedModel]) -> Finding:
        """Return the verdict on the claim: it holds only if every part was measured and all evidence agrees."""
        found = [(tuple(check(runs)), needs) for check, needs in self.parts]
        evidence = tuple(item for items, _ in found for item in items)
        missing = [needs for items, needs in found if all(item.agrees is None for item in items)]
        agreements = [item.agrees for item in evidence if item.agrees is not None]
        if not agreements:
            verdict = OPEN
        elif not any(agreements):
            verdict = FAILS
        else:
            verdict = HOLDS if all(agreements) and not missing else PARTLY
        return Finding(verdict, evidence, " ".join(missing))


def kw_with_attacks(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
    """Compare KW + at with KW: certified error, and error under attacks where both have it."""
    for setting, group in settings(runs):
        for kw, both in pairs(group, "kw", "kw+at"):
            for key in ("PGD", "PGD_strong", "CRE_Lin"):
                if has(kw, key) and has(both, key):
                    text = f"{setting}: {key} {value(both, key):.2f} % against {value(kw, key):.2f} %"
                    counts = difference(both, kw, key) > 0 if key == "CRE_Lin" else None
                    yield Evidence(text, counts, (str(kw.path), str(both.path)))


def partial_bounds(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
    """Count samples of CIFAR-10 with a radius between 0 and eps, which all-or-nothing methods miss."""
    for run in runs:
        frame = run.samples
        if run.fact("dataset") != "cifar10" or str(run.fact("norm")) != "inf" or frame is None:
            continue
        if {"radius", "certified"} <= set(frame):
            right = frame["label"] == frame["prediction"]
            share = 100 * float(((frame["radius"] > 0) & ~flag(frame, "certified") & right).mean())
            text = f"{run.name}: {share:.1f} % of {len(frame):,} samples"
            agrees = 10 <= round(share) <= 20 if len(frame) >= ENOUGH else None
            yield Evidence(text, agrees, (str(run.path.with_suffix(".samples.parquet")),))


def overhead(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
    """Compare the time of the distances with that of the bounds; only CIFAR-10 networks count, as in the paper."""
    for run in runs:
        if has(run, "PEC_overhead"):
            found, dataset = value(run, "PEC_overhead"), run.fact("dataset")
            text = f"{run.name} on {dataset}: {found:+.1f} %"
            yield Evidence(text, found <= 2 if dataset == "cifar10" else None, (str(run.path),))


def search_saves(architecture: str, claimed: float) -> Check:
    """Return a check that compares the search by envelopes with bisection, on all models of an architecture."""

    def check(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
        seen = [run for run in runs if has(run, "T_bisection") and has(run, "T_envelope")]
        seen = [run for run in seen if str(run.fact("architecture")).lower() == architecture]
        if not seen:
            return
        saved = [_saved(run, "T_envelope") for run in seen]
        mean = sum(saved) / len(saved)
        roots = [_saved(run, "T_root") for run in seen if has(run, "T_root")]
        ours = f"; polycert's own search (root) saves {sum(roots) / len(roots):.0f} %" if roots else ""
        count = f"{len(seen)} model{'s' if len(seen) > 1 else ''}"
        text = f"{architecture.upper()}: {mean:.0f} % saved ({min(saved):.0f} to {max(saved):.0f} % on {count}){ours}"
        yield Evidence(text, mean >= 0.8 * claimed, tuple(str(run.path) for run in seen))

    return check


def _saved(run: ReportedModel, key: str) -> float:
    """Return the per cent of the evaluations of bisection that a search saves."""
    return 100 * (1 - value(run, key) / value(run, "T_bisection"))


def few_samples(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
    """Compare PER with a small sub-sample to PER with a large one, all else equal."""
    for small, large, key in subsampled([run for run in runs if "per" in method_of(run)]):
        near = difference(small, large, key) <= 0 or value(small, key) - value(large, key) <= 1
        yield Evidence(subsample_line(small, large, key), near, (str(small.path), str(large.path)))


def few_samples_hurt(method: str) -> Check:
    """Return a check that compares a small sub-sample with a large one, for a method on CIFAR-10."""

    def check(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
        chosen = [run for run in runs if run.fact("dataset") == "cifar10" and method_of(run) == method]
        for small, large, key in subsampled(chosen):
            worse = difference(small, large, key) > 0
            yield Evidence(subsample_line(small, large, key), worse, (str(small.path), str(large.path)))

    return check


def few_iterations(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
    """Count the iterations of Algorithm 1 until no coordinate leaves the box."""
    for run in runs:
        counts = run.record.get("iterations")
        if isinstance(counts, dict) and counts:
            total = sum(counts.values())
            share = 100 * sum(count for rounds, count in counts.items() if int(rounds) <= 5) / total
            most = max(map(int, counts))
            text = f"{run.name}: {share:.1f} % of {total:,} distances (the longest took {most} iterations)"
            yield Evidence(text, share > 50, (str(run.path),))


def parameter_norms(runs: Sequence[ReportedModel]) -> Iterator[Evidence]:
    """Compare the norms of the parameters of KW and of C-PER+at in the same setting."""
    for setting, group in settings([run for run in runs if has(run, "parameter_norm")]):
        for kw, per in pairs(group, "kw", "c-per+at"):
            kw_norm, per_norm = value(kw, "parameter_norm"), value(per, "parameter_norm")
            text = f"{setting}: {kw_norm:.4g} against {per_norm:.4g} of C-PER+at"
            yield Evidence(text, kw_norm < per_norm, (str(kw.path), str(per.path)))


def _train_twice(recipe: str, few: int, many: int) -> str:
    """Return the commands that train a recipe with two sub-samples."""
    return (
        f"Run `polycert train {recipe} --set subsample={few} --run-dir runs/{recipe}-{few}` and the same with "
        f"`subsample={many}` and `runs/{recipe}-{many}`, and give both folders to the report."
    )


CLAIMS = (
    Claim(
        "KW plus an adversarial loss is worse than KW alone (MNIST CNN, l_inf: 3.64 % under PGD, 8.12 % CRE Lin).",
        "CRE Lin of kw+at above that of kw, by more than chance explains (95 %).",
        (
            (
                kw_with_attacks,
                "Run `polycert train mnist-cnn-linf-kw --run-dir runs/kw`, train a second model on "
                "`pc.losses.Sum(pc.losses.KW(), pc.losses.AT())` (no recipe does), evaluate both with "
                "`polycert evaluate MODEL --dataset mnist --norm inf --eps 0.1 --out FILE.json`, "
                "and call the second one's method kw+at.",
            ),
        ),
    ),
    Claim(
        "10 to 20 % of CIFAR-10 points get a partial bound from PEC where Fast-Lin gives none.",
        "Share of samples with 0 < radius < eps (l_inf), rounded, from 10 to 20 %; of 1,000 samples or more.",
        (
            (
                partial_bounds,
                "Run `polycert evaluate MODEL --dataset cifar10 --norm inf --eps 2/255 --samples --out FILE.json`.",
            ),
        ),
    ),
    Claim(
        "PEC costs 1 % more than CROWN.",
        "CPU time of bounds and distances over that of the bounds alone on CIFAR-10, up to 2 %.",
        ((overhead, "Run `python benchmarks/claims.py MODEL --dataset cifar10 --eps 2/255 --out FILE.json`."),),
    ),
    Claim(
        "The search by envelopes saves 25 % of the evaluations on FC1 and 10 % on CNN.",
        "Mean of 1 − T_envelope / T_bisection, at least four fifths of the claimed share.",
        (
            (search_saves("fc1", 25), "For FC1, run `polycert evaluate MODEL --out FILE.json` on such a model."),
            (search_saves("cnn", 10), "For CNN, run `polycert evaluate MODEL --out FILE.json` on such a model."),
        ),
    ),
    Claim(
        "A sub-sample B′ much smaller than the batch B is enough for PER.",
        "Certified error at most 1 point above that with four times as many samples or more, or no more than chance.",
        ((few_samples, _train_twice("mnist-fc1-linf-c-per", 20, 100)),),
    ),
    Claim(
        "Sub-sampling hurts IBP and C-IBP on CIFAR-10.",
        "Certified error above that with four times as many samples or more, by more than chance explains (95 %).",
        (
            (few_samples_hurt("ibp"), _train_twice("cifar10-cnn-linf-ibp", 10, 100)),
            (few_samples_hurt("c-ibp"), _train_twice("cifar10-cnn-linf-c-ibp", 10, 100)),
        ),
    ),
    Claim(
        "Algorithm 1 ends within 5 iterations in most cases.",
        "More than half of all distances (one per sample and other class).",
        ((few_iterations, "Run `python benchmarks/claims.py MODEL --dataset mnist --eps 0.1 --out FILE.json`."),),
    ),
    Claim(
        "KW networks have smaller parameter norms than those of C-PER+at.",
        "parameter_norm in the same setting.",
        (
            (
                parameter_norms,
                "Run `polycert evaluate MODEL --out FILE.json` on models of `polycert train mnist-fc1-linf-kw` and "
                "`polycert train mnist-fc1-linf-c-per+at`.",
            ),
        ),
    ),
)


def claims_part(runs: Sequence[ReportedModel]) -> PagePart:
    """Return a part of the report with a line for each claim and the verdict of these runs' records."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    claims = [(claim, claim.check(runs)) for claim in CLAIMS]
    content = environment.from_string(_asset("claims.html")).render(claims=claims, commands=_commands)
    return PagePart("claims", "The paper’s claims", Markup(content), _asset("claims.css"))


def _commands(text: str) -> Markup:
    """Return a text as HTML, in which backticks mark code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def _asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (resources.files("polycert_paper") / name).read_text(encoding="utf-8")
