"""What a run must remember to go on as if it had never stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polycert.errors import PolycertError, reason
from polycert.records.run_folder import Checkpoint

if TYPE_CHECKING:
    from polycert.training.loop import Run


def snapshot(run: Run) -> Checkpoint:
    """Everything that the next epoch depends on: weights, their averages, the optimiser's moments, chosen sizes."""
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
    """Put a fresh run into the state of a snapshot of the same recipe; what may change the last bits is returned."""
    try:
        return _restored(run, checkpoint)
    except (KeyError, RuntimeError) as error:
        raise PolycertError(
            f"the checkpoint in {str(run.folder.path)!r} does not fit this version ({reason(error)}): "
            "train into another folder"
        ) from None


def _restored(run: Run, checkpoint: Checkpoint) -> list[str]:
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
    """What the last bits of a result may depend on."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "processes": run.processes.count}


def _check_recipe(old: dict[str, Any], new: dict[str, Any]) -> None:
    keys = sorted(key for key in {*old, *new} - {"about"} if old.get(key) != new.get(key))
    if keys:
        raise PolycertError(
            f"this run was started with other values of {', '.join(keys)}: resume with the same recipe, "
            "or train into another folder"
        )


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
