"""The training loop: from a recipe to a run's folder, resumable after every epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polycert.attacks.pgd import margin_of, pgd_attack
from polycert.bounding.chunking import batch_size_for
from polycert.certification.certify import envelope
from polycert.errors import PolycertError, reason
from polycert.graph import Graph, Network, capture
from polycert.losses import Draws
from polycert.models.architectures import ARCHITECTURES, Architecture, build
from polycert.models.model_files import save
from polycert.records.run_folder import Checkpoint, RunFolder
from polycert.runtime.execution import Processes
from polycert.sets.ball import Ball
from polycert.training.batches import Batch, TrainingSet
from polycert.training.initial_weights import begin_with, revive_dead_units
from polycert.training.recipe import Recipe
from polycert.training.recipe_files import to_toml

log = logging.getLogger(__name__)

LOOK = 1000  # samples over which units count as idle or living
PREDICTED = 500  # samples of a batch of predictions in validation


class TrainingProgress(NamedTuple):
    """The argument of a progress report, which is called after every step, and after every epoch with its metrics."""

    step: int
    steps: int
    epoch: int
    loss: float
    metrics: dict[str, Any] | None = None


Report = Callable[[TrainingProgress], None]


class Diverged(PolycertError):
    """A loss, gradient or weight is not finite."""


class Objective(nn.Module):
    """The loss of a network as one module, so that gradients through the bounds are synchronised between processes."""

    def __init__(self, module: nn.Module, network: Network) -> None:
        super().__init__()
        self.module, self.network = module, network

    def forward(self, loss: nn.Module, x: Tensor, y: Tensor, ball: Ball, draws: Draws) -> Tensor:
        """Return the loss at these samples, a scalar."""
        value: Tensor = loss(self.network, x, y, ball, draws)
        return value


@dataclass(eq=False)
class Run:
    """A training run: recipe, samples, folder, network, optimiser, and what has been reached."""

    recipe: Recipe
    samples: TrainingSet
    folder: RunFolder
    processes: Processes
    module: nn.Sequential
    averaged: nn.Module  # what is validated and saved; the module itself without averaging
    architecture: Architecture
    optimiser: torch.optim.Adam
    objective: nn.Module
    watched: Network  # the graph of the averaged module
    evaluation_batch: int
    best: float = float("inf")
    seconds: float = 0.0
    seconds_cpu: float = 0.0  # of this process

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.samples.x.shape[1:])

    def begin(self) -> None:
        """Take over the weights that the recipe starts from, if it names any."""
        recipe = self.recipe
        if recipe.start is None:
            return
        begin_with(self.module, recipe, recipe.start)
        if recipe.revive is not None:
            seen = self.samples.x[self.samples.training[:LOOK]]
            count = revive_dead_units(self.module, seen, recipe.ball(), recipe.revive, recipe.seed)
            log.info("%d idle units of %s became copies of living ones", count, recipe.start)
        self._follow(1.0)

    def step(self, batch: Batch, now: float) -> Tensor:
        """Take a step of the optimiser at the time `now` in epochs; returns the loss, detached."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.learning_rate(now)
        self.optimiser.zero_grad(set_to_none=True)
        value: Tensor = self.objective(self.recipe.loss(now), batch.x, batch.y, self.recipe.ball(now), batch.draws)
        value.backward()
        found = self.processes.mean(value.detach())
        if not bool(torch.isfinite(found)):
            raise FloatingPointError
        if self.recipe.clip is not None:
            self._clip(self.recipe.clip)
        self.optimiser.step()
        self._average(now)
        return found

    def _clip(self, most: float) -> None:
        """Scale the gradients so that their common norm is at most `most`."""
        norm = nn.utils.get_total_norm([p.grad for p in self.module.parameters() if p.grad is not None])
        if not bool(torch.isfinite(norm)):
            raise FloatingPointError
        if float(norm) > most:
            nn.utils.clip_grads_with_norm_(self.module.parameters(), most, norm)

    def _average(self, now: float) -> None:
        """Update the average of the weights, from two steps before it counts."""
        if self.recipe.average is None or now + 2 / self.samples.steps(self.recipe) < self.recipe.average_from:
            return
        self._follow(1 - self.recipe.average if now >= self.recipe.average_from else 1.0)

    @torch.no_grad()
    def _follow(self, weight: float) -> None:
        """Move the average towards the weights, by a share `weight` of the way."""
        for mean, value in zip(self.averaged.parameters(), self.module.parameters(), strict=True):
            mean.lerp_(value, weight)

    def epoch(self, epoch: int, report: Report) -> dict[str, Any]:
        """Take all steps of an epoch, then validate; returns the epoch's metrics."""
        steps, clock, work = self.samples.steps(self.recipe), time.perf_counter(), time.process_time()
        total = torch.zeros((), dtype=torch.float64)
        batches = self.samples.epoch(self.recipe, epoch, self.processes.rank, self.processes.count)
        for k, batch in enumerate(batches):
            try:
                loss = self.step(batch, epoch + k / steps)
            except FloatingPointError:
                raise Diverged(self._not_finite(epoch, k)) from None
            total += loss.double().cpu()
            report(TrainingProgress(epoch * steps + k + 1, self.recipe.epochs * steps, epoch, float(loss)))
        if not all(
            bool(torch.isfinite(p).all()) for p in self.module.parameters()
        ):  # the last step is checked by no later one
            raise Diverged(self._not_finite(epoch, steps - 1))
        trained = time.perf_counter() - clock
        last = epoch + (steps - 1) / steps
        if last < self.recipe.average_from:
            self._follow(1.0)
        row = {"epoch": epoch + 1, "loss": float(total) / steps}
        row |= {"eps": self.recipe.eps.at(last), "lr": self.recipe.learning_rate(last)}
        row |= self.validate() if self.processes.first else {}
        self.seconds += time.perf_counter() - clock
        self.seconds_cpu += time.process_time() - work
        row |= {"seconds": round(self.seconds, 3), "seconds_cpu": round(self.seconds_cpu, 3)}
        return row | {"seconds_training": round(trained, 3)}

    def _not_finite(self, epoch: int, step: int) -> str:
        """Return the error sentence for a loss or gradient that is not finite."""
        kept = (
            f"the state after epoch {epoch} is kept in {str(self.folder.path)!r}" if epoch else "no epoch was finished"
        )
        return (
            f"the loss or its gradient is not finite in epoch {epoch + 1}, step {step + 1}, so training stopped; "
            f"{kept}: lower lr or gamma, or set clip"
        )

    def validate(self) -> dict[str, float]:
        """Return the validation errors of the model that would be saved now, in per cent."""
        index = self.samples.validation
        x, y = self.samples.x[index], self.samples.y[index]
        return validate(self.watched, x, y, self.recipe.ball(), self.recipe.certified, self.evaluation_batch)

    def keep(self, epoch: int, row: dict[str, Any]) -> None:
        """Write the metrics, the model if it is the one to save, and a checkpoint."""
        self.folder.add_metrics(row)
        if self._better(row):
            save(self.averaged, self.folder.model, self.architecture, self.shape)
        self.folder.write(epoch + 1, snapshot(self))

    def _better(self, row: dict[str, Any]) -> bool:
        """Return whether this epoch's model is the one to save."""
        if self.recipe.select == "last" or row["eps"] < self.recipe.target:
            return True
        if row["validation_CRE"] >= self.best:
            return False
        self.best = row["validation_CRE"]
        return True


def prepare(
    recipe: Recipe,
    run_dir: Path,
    *,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    memory: int | None = None,
    processes: Processes | None = None,
) -> Run:
    """Return a run before its first step: its weights are drawn by the seed, and nothing is written yet."""
    device, processes = device or torch.device("cpu"), processes or Processes()
    if recipe.batch < processes.count:
        raise PolycertError(
            f"recipe: key 'batch': must be at least {processes.count}, one sample for each process, got {recipe.batch}"
        )
    samples = TrainingSet.load(recipe, data_dir, device)
    shape = tuple(samples.x.shape[1:])
    architecture = ARCHITECTURES[recipe.architecture](shape, activation=recipe.activation)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        module = build(architecture).to(device)
    averaged = module if recipe.average is None else deepcopy(module)
    watched = capture(averaged, shape)
    objective = Objective(module, capture(module, shape))
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3, weight_decay=recipe.weight_decay, fused=True)
    return Run(
        recipe,
        samples,
        RunFolder(run_dir),
        processes,
        module,
        averaged,
        architecture,
        optimiser,
        processes.wrap(objective),
        watched,
        batch_size_for(watched.bind(), memory=memory),
    )


def train(
    run: Run, *, resume: bool = False, report: Report = lambda _: None, warn: Callable[[str], None] = log.warning
) -> dict[str, Any]:
    """Train to the end of the recipe; returns the last epoch's metrics.

    Args:
        run: from `prepare`.
        resume: continue from the folder's last checkpoint. On one kind of machine the result is bit for bit that of an
            uninterrupted run.
        report: called after every step and every epoch.
        warn: called with each reason why a resumed run may differ in its last bits.
    """
    begin, row = 0, {}
    if resume:
        begin, checkpoint = run.folder.read()
        for remark in restore(run, checkpoint):
            warn(remark)
    elif run.folder.started:
        raise PolycertError(f"{str(run.folder.path)!r} already holds a run: add --resume, or give another --run-dir")
    else:
        run.begin()
    if run.processes.first:
        run.folder.make(to_toml(run.recipe.plain()))
        run.folder.cut_metrics(begin)
    steps = run.samples.steps(run.recipe)
    for epoch in range(begin, run.recipe.epochs):
        row = run.epoch(epoch, report)
        if run.processes.first:
            run.keep(epoch, row)
        report(TrainingProgress((epoch + 1) * steps, run.recipe.epochs * steps, epoch, row["loss"], row))
    return row


def validate(net: Network, x: Tensor, y: Tensor, ball: Ball, certified: int, batch_size: int) -> dict[str, float]:
    """Return the clean error on all samples and the certified error on the first `certified` of them, in per cent."""
    if not len(x):
        return {}
    with torch.no_grad():
        graph = net.bind()
        predicted = torch.cat([graph.forward(part).argmax(1) for part in x.split(PREDICTED)])
    found = {"validation_CTE": 100 * float((predicted != y).double().mean())}
    if certified:
        few = zip(x[:certified].split(batch_size), y[:certified].split(batch_size), strict=True)
        proved = torch.cat([_proved(net, graph, *part, ball) for part in few])
        found["validation_CRE"] = 100 * float((~proved).double().mean())
    return found


@torch.no_grad()
def _proved(net: Network, graph: Graph, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """Return whether `ibp` or `crown` proves each sample's whole ball, `[batch]`.

    Samples that one step of an attack breaks are left out, since bounds cost more. Both methods are tried, since
    networks that are trained by intervals are often proved by intervals only.
    """
    attacked = pgd_attack(graph, ball.at(x), y, x, steps=1, step=1.0)
    left = (margin_of(graph.forward(attacked), y) > 0).nonzero().squeeze(1)
    proved = torch.zeros_like(y, dtype=torch.bool)
    for method in ("ibp", "crown"):
        if len(left):
            proved[left] = (envelope(net, x[left], y[left], ball, method=method).margins() > 0).all(1)
            left = left[~proved[left]]
    return proved


def snapshot(run: Run) -> Checkpoint:
    """Return all that the next epoch depends on: weights, their averages, the optimiser's moments, batch sizes."""
    tensors = {f"model.{key}": value for key, value in run.module.state_dict().items()}
    if run.averaged is not run.module:
        tensors |= {f"average.{key}": value for key, value in run.averaged.state_dict().items()}
    for position, state in run.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{position}.{key}": value for key, value in state.items()}
    facts = {
        "best": None if run.best == float("inf") else run.best,
        "seconds": run.seconds,
        "seconds_cpu": run.seconds_cpu,
        "recipe": run.recipe.plain(),
        "evaluation_batch": run.evaluation_batch,
        **_surroundings(run),
    }
    return Checkpoint(facts, tensors)


def restore(run: Run, checkpoint: Checkpoint) -> list[str]:
    """Put a fresh run into the state of a snapshot of the same recipe.

    Returns a sentence for each difference that may change the last bits of the result.
    """
    try:
        return _restored(run, checkpoint)
    except (KeyError, RuntimeError) as error:
        raise PolycertError(
            f"the checkpoint in {str(run.folder.path)!r} does not fit this version ({reason(error)}): "
            "train into another folder"
        ) from None


def _restored(run: Run, checkpoint: Checkpoint) -> list[str]:
    """Do the work of `restore`; raises `KeyError` or `RuntimeError` if the checkpoint does not fit."""
    facts, tensors = checkpoint
    _check_recipe(facts["recipe"], run.recipe.plain())
    run.module.load_state_dict(_under(tensors, "model."))
    if run.averaged is not run.module:
        run.averaged.load_state_dict(_under(tensors, "average."))
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in _under(tensors, "adam.").items():
        position, _, name = key.partition(".")
        moments.setdefault(int(position), {})[name] = value
    run.optimiser.load_state_dict({**run.optimiser.state_dict(), "state": moments})
    run.best = float("inf") if facts["best"] is None else facts["best"]
    run.seconds, run.seconds_cpu, run.evaluation_batch = (
        facts[key] for key in ("seconds", "seconds_cpu", "evaluation_batch")
    )
    return [
        f"resumed with {key} {value} instead of {facts[key]}: the last bits may differ"
        for key, value in _surroundings(run).items()
        if facts[key] != value
    ]


def _surroundings(run: Run) -> dict[str, Any]:
    """Return the facts that the last bits of a result may depend on."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "processes": run.processes.count}


def _check_recipe(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse to resume a run by another recipe."""
    keys = sorted(key for key in {*old, *new} - {"about"} if old.get(key) != new.get(key))
    if keys:
        raise PolycertError(
            f"this run was started with other values of {', '.join(keys)}: resume with the same recipe, "
            "or train into another folder"
        )


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, named without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
