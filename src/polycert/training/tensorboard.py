"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.training.loop import TrainingProgress


def tensorboard_report(folder: Path) -> Callable[[TrainingProgress], None]:
    """A report that writes each epoch's metrics into `folder`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise PolycertError("--tensorboard needs the package tensorboard: pip install tensorboard") from None

    @cache
    def writer() -> Any:  # makes the folder: not before a first epoch is done
        return SummaryWriter(str(folder / "tensorboard"))

    def report(moment: TrainingProgress) -> None:
        if moment.metrics is None:
            return
        for key, value in moment.metrics.items():
            if key != "epoch":
                writer().add_scalar(key, value, moment.epoch + 1)
        writer().flush()

    return report
