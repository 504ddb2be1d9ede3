"""The paper's claims, checked: each one against the records at hand, or the command that would make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from polycert.report.runs import Run

HOLDS, PARTLY, FAILS, OPEN = "holds", "holds in part", "does not hold", "not measured yet"
SURE = 1.96  # standard errors on either side of a 95 % interval


@dataclass(frozen=True)
class Finding:
    """What the records say: single outcomes in words, which of them agree with the claim, and what is missing."""

    lines: tuple[str, ...] = ()
    agrees: tuple[bool, ...] = ()
    sources: tuple[str, ...] = ()
    missing: str = ""

    @property
    def verdict(self) -> str:
        """Holds only if everything that the claim speaks of was measured and agrees."""
        if not self.agrees:
            return OPEN
        if not any(self.agrees):
            return FAILS
        return HOLDS if all(self.agrees) and not self.missing else PARTLY


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what counts as agreement, and the check."""

    text: str
    measure: str
    check: Callable[[Sequence[Run]], Finding]


def kw_with_attacks(runs: Sequence[Run]) -> Finding:
    """KW + at against KW: certified and attacked error in the same setting."""
    lines, agrees, sources = [], [], []
    for setting, group in _settings(runs):
        for kw, both in _pairs(group, "kw", "kw+at"):
            figures = [key for key in ("PGD", "attack", "CRE_Lin") if _has(kw, key) and _has(both, key)]
            lines += [f"{setting}: {key} {_value(both, key):.2f} % against {_value(kw, key):.2f} %" for key in figures]
            agrees += [difference(both, kw, key) > 0 for key in figures if key == "CRE_Lin"]
            sources += [str(kw.path), str(both.path)]
    missing = (
        ""
        if agrees
        else "Train on pc.losses.Sum(pc.losses.KW(), pc.losses.AT()), evaluate it with "
        "`polycert evaluate MODEL --dataset mnist --norm inf --eps 0.1`, give its record the method kw+at, and add that "
        "of `polycert train mnist-cnn-linf-kw`."
    )
    return Finding(tuple(lines), tuple(agrees), tuple(sources), missing)


def partial_bounds(runs: Sequence[Run]) -> Finding:
    """Samples of CIFAR-10 with a radius between 0 and eps: what all-or-nothing methods miss."""
    lines, agrees, sources = [], [], []
    for run in runs:
        frame = run.samples
        if run.fact("dataset") != "cifar10" or _norm(run) != "inf" or frame is None:
            continue
        if not {"radius", "certified"} <= set(frame):
            continue
        partial = (frame["radius"] > 0) & ~frame["certified"].astype(bool) & (frame["label"] == frame["prediction"])
        share = 100 * float(partial.mean())
        lines.append(f"{run.name}: {share:.1f} % of {len(frame):,} samples")
        agrees.append(round(share) in range(10, 21))
        sources.append(str(run.path.with_suffix(".samples.parquet")))
    missing = (
        ""
        if agrees
        else "Run `polycert evaluate MODEL --dataset cifar10 --norm inf --eps 2/255 --samples --out FILE.json`."
    )
    return Finding(tuple(lines), tuple(agrees), tuple(sources), missing)


def overhead(runs: Sequence[Run]) -> Finding:
    """Time of the distances on top of the bounds."""
    seen = [run for run in runs if _has(run, "PEC_overhead")]
    missing = (
        ""
        if seen
        else "Run `python benchmarks/claims.py MODEL --dataset cifar10 --norm inf --eps 2/255 --out FILE.json`."
    )
    return Finding(
        tuple(f"{run.name}: {_value(run, 'PEC_overhead'):+.1f} %" for run in seen),
        tuple(_value(run, "PEC_overhead") <= 2 for run in seen),
        tuple(str(run.path) for run in seen),
        missing,
    )


def search(runs: Sequence[Run]) -> Finding:
    """Evaluations of the envelope's search against bisection's, for each architecture of the claim."""
    lines, agrees, sources, left = [], [], [], []
    for architecture, claimed in (("fc1", 25), ("cnn", 10)):
        seen = [run for run in runs if _is(run, architecture) and _has(run, "T_bisection") and _has(run, "T_envelope")]
        if not seen:
            left.append(architecture)
            continue
        saved = [100 * (1 - _value(run, "T_envelope") / _value(run, "T_bisection")) for run in seen]
        mean = sum(saved) / len(saved)
        roots = [100 * (1 - _value(run, "T_root") / _value(run, "T_bisection")) for run in seen if _has(run, "T_root")]
        ours = f"; polycert's own search (root) saves {sum(roots) / len(roots):.0f} %" if roots else ""
        models = f"{len(seen)} model{'s' if len(seen) > 1 else ''}"
        lines.append(
            f"{architecture.upper()}: {mean:.0f} % saved ({min(saved):.0f} to {max(saved):.0f} % on {models}){ours}"
        )
        agrees.append(mean >= 0.8 * claimed)
        sources += [str(run.path) for run in seen]
    missing = f"Run `polycert evaluate MODEL --out FILE.json` on models {' and '.join(left)}." if left else ""
    return Finding(tuple(lines), tuple(agrees), tuple(sources), missing)


def few_samples(runs: Sequence[Run]) -> Finding:
    """PER with a small sub-sample against a large one, all else equal."""
    lines, agrees, sources = [], [], []
    for small, large, key in _subsampled(runs, lambda run: "per" in _method(run)):
        lines.append(_subsample_line(small, large, key))
        worse = _value(small, key) - _value(large, key)
        agrees.append(difference(small, large, key) <= 0 or worse <= 1)
        sources += [str(small.path), str(large.path)]
    missing = (
        ""
        if agrees
        else "Run `polycert train mnist-fc1-linf-c-per --set subsample=20 --run-dir runs/sub20`, the same with "
        "subsample=100 and another folder, and give both folders to the report."
    )
    return Finding(tuple(lines), tuple(agrees), tuple(sources), missing)


def few_samples_of_ibp(runs: Sequence[Run]) -> Finding:
    """IBP and C-IBP on CIFAR-10: a small sub-sample against a large one."""
    lines, agrees, sources, left = [], [], [], []
    for method in ("ibp", "c-ibp"):
        before = len(agrees)
        for small, large, key in _subsampled(runs, lambda run, method=method: _on_cifar(run, method)):  # type: ignore[misc]
            lines.append(_subsample_line(small, large, key))
            agrees.append(difference(small, large, key) > 0)
            sources += [str(small.path), str(large.path)]
        if len(agrees) == before:
            left.append(method)
    missing = " ".join(
        f"Run `polycert train cifar10-cnn-linf-{method} --set subsample=10 --run-dir runs/{method}-10`, "
        "and the same with subsample=100 and another folder."
        for method in left
    )
    return Finding(tuple(lines), tuple(agrees), tuple(sources), missing)


def iterations(runs: Sequence[Run]) -> Finding:
    """How many rounds Algorithm 1 takes until nothing leaves the box."""
    lines, agrees, sources = [], [], []
    for run in runs:
        counts = run.record.get("iterations")
        if not isinstance(counts, dict) or not counts:
            continue
        total = sum(counts.values())
        share = 100 * sum(count for rounds, count in counts.items() if int(rounds) <= 5) / total
        lines.append(f"{run.name}: {share:.1f} % of {total:,} distances (most: {max(map(int, counts))} iterations)")
        agrees.append(share > 50)
        sources.append(str(run.path))
    missing = "" if agrees else "Run `python benchmarks/claims.py MODEL --dataset mnist --eps 0.1 --out FILE.json`."
    return Finding(tuple(lines), tuple(agrees), tuple(sources), missing)


def parameter_norms(runs: Sequence[Run]) -> Finding:
    """KW's parameters against C-PER+at's in the same setting."""
    lines, agrees, sources = [], [], []
    for setting, group in _settings(runs):
        for kw, per in _pairs([run for run in group if _has(run, "parameter_norm")], "kw", "c-per+at"):
            ours, theirs = _value(kw, "parameter_norm"), _value(per, "parameter_norm")
            lines.append(f"{setting}: {ours:.4g} against {theirs:.4g} of C-PER+at")
            agrees.append(ours < theirs)
            sources += [str(kw.path), str(per.path)]
    missing = (
        ""
        if agrees
        else "Run `polycert evaluate MODEL --out FILE.json` on a model of `polycert train mnist-fc1-linf-kw` and one of "
        "`polycert train mnist-fc1-linf-c-per+at`."
    )
    return Finding(tuple(lines), tuple(agrees), tuple(sources), missing)


CLAIMS = (
    Claim(
        "KW plus an adversarial loss is worse than KW alone (MNIST CNN, l_inf: 3.64 % under PGD, 8.12 % CRE Lin).",
        "CRE Lin of kw+at is above that of kw by more than their 95 % intervals allow.",
        kw_with_attacks,
    ),
    Claim(
        "10 to 20 % of CIFAR-10 points get a partial bound from PEC where Fast-Lin gives none.",
        "Share of samples with 0 < radius < eps, l_inf; 10 to 20 %, rounded.",
        partial_bounds,
    ),
    Claim(
        "PEC costs 1 % more than CROWN.", "CPU time with distances over that of the bounds alone; up to 2 %.", overhead
    ),
    Claim(
        "The search by envelopes saves 25 % of the evaluations on FC1 and 10 % on CNN.",
        "Mean of 1 − T_envelope / T_bisection; at least four fifths of the claimed share.",
        search,
    ),
    Claim(
        "A sub-sample B′ much smaller than the batch B is enough for PER.",
        "Certified error at most 1 point above that of four times as many samples or more, or within the 95 % interval.",
        few_samples,
    ),
    Claim(
        "Sub-sampling hurts IBP and C-IBP on CIFAR-10.",
        "Certified error above that of four times as many samples or more, beyond the 95 % interval.",
        few_samples_of_ibp,
    ),
    Claim(
        "Algorithm 1 ends within 5 iterations in most cases.",
        "More than half of all distances (one per sample and other class).",
        iterations,
    ),
    Claim(
        "KW networks have smaller parameter norms than those of C-PER+at.",
        "parameter_norm in the same setting.",
        parameter_norms,
    ),
)


def difference(one: Run, other: Run, key: str) -> float:
    """Error of `one` less that of `other` in per cent; 0 where their 95 % intervals cannot tell them apart."""
    gap = _value(one, key) - _value(other, key)
    spread = SURE * math.hypot(_deviation(one, key), _deviation(other, key))
    return gap if abs(gap) > spread else 0.0


def _deviation(run: Run, key: str) -> float:
    """Standard error of a share in per cent."""
    counted = run.record.get("n") or run.recipe.get("certified") or 1000
    share = min(max(_value(run, key) / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / counted)


def _value(run: Run, key: str) -> float:
    """A figure of the record, or of the last epoch."""
    value = run.record.get(key, run.metrics[-1].get(key) if run.metrics else None)
    return float(value) if isinstance(value, int | float) else math.nan


def _has(run: Run, key: str) -> bool:
    return math.isfinite(_value(run, key))


def _is(run: Run, architecture: str) -> bool:
    return str(run.fact("architecture")).lower() == architecture


def _method(run: Run) -> str:
    return str(run.fact("method")).lower()


def _norm(run: Run) -> str:
    return str(run.fact("norm"))


def _on_cifar(run: Run, method: str) -> bool:
    return run.fact("dataset") == "cifar10" and _method(run) == method


def _settings(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Runs of the same data set, architecture, activation, norm and eps; released models apart from others."""

    def setting(run: Run) -> tuple[str, ...]:
        keys = [str(run.fact(key)) for key in ("dataset", "architecture", "activation", "norm", "eps")]
        return (*keys, "released" if "released" in run.path.parts else "")

    for keys, group in groupby(sorted(runs, key=setting), setting):
        dataset, architecture, activation, norm, eps, released = keys
        text = f"{dataset} {architecture} {activation} l_{norm} {eps}"
        yield f"{text} ({released})" if released else text, list(group)


def _pairs(runs: Sequence[Run], one: str, other: str) -> Iterator[tuple[Run, Run]]:
    for first in runs:
        for second in runs:
            if (_method(first), _method(second)) == (one, other):
                yield first, second


def _subsampled(runs: Sequence[Run], wanted: Callable[[Run], bool]) -> Iterator[tuple[Run, Run, str]]:
    """Trainings that differ in nothing but the sub-sample (and seed), by a factor of 4 or more, and the error to compare."""
    trained = [run for run in runs if run.recipe and wanted(run) and _subsample(run) is not None]
    for small in trained:
        for large in trained:
            if 4 * (_subsample(small) or 0) > (_subsample(large) or 0) or _rest(small) != _rest(large):
                continue
            key = next((key for key in ("CRE_Lin", "validation_CRE") if _has(small, key) and _has(large, key)), None)
            if key is not None:
                yield small, large, key


def _subsample(run: Run) -> float | None:
    """How many samples of a batch are bounded; None where that changes over time."""
    value = run.recipe.get("subsample", run.recipe.get("batch"))
    return float(value) if isinstance(value, int | float) else None


def _rest(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.recipe.items() if key not in ("subsample", "seed", "about")}


def _subsample_line(small: Run, large: Run, key: str) -> str:
    return (
        f"{small.name}: {key} {_value(small, key):.2f} % with B′ = {_subsample(small):g}, "
        f"{_value(large, key):.2f} % with {_subsample(large):g}"
    )
