"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polycert.errors import PolycertError
from polycert.training.loop import Moment


def board(folder: Path) -> Callable[[Moment], None]:
    """A report that writes each epoch's metrics into `folder`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise PolycertError("--tensorboard needs the package tensorboard: pip install tensorboard") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def report(moment: Moment) -> None:
        for key, value in (moment.metrics or {}).items():
            if key != "epoch":
                writer.add_scalar(key, value, moment.epoch + 1)
        if moment.metrics is not None:
            writer.flush()

    return report
