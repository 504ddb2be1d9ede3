"""`polycert demo`: train a small provably robust network on embedded digits, certify it, and draw the results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from polycert import data
from polycert.certification.certify import certify
from polycert.certification.radius import largest_radius
from polycert.cli.exit_status import BadUsage
from polycert.cli.options import DemoOptions
from polycert.evaluation import evaluate
from polycert.graph import Network, capture
from polycert.losses import PER, Plain
from polycert.models.architectures import build, fc1
from polycert.models.model_files import save
from polycert.records.certificates import Certificates
from polycert.records.run_folder import RunFolder
from polycert.report import write_report
from polycert.report.plots import digits, two_phases
from polycert.sets.ball import Ball

Report = Callable[[str], None]
SHAPE = (1, 28, 28)
EPS = 0.1
EPOCHS = 30
WARM_UP = 4
BATCH = 100
ABOUT = {
    "model": "demo",
    "dataset": "mnist-sample",
    "architecture": "fc1",
    "activation": "relu",
    "method": "c-per",
    "seed": 0,
    "command": "polycert demo",
}


def demo_command(options: DemoOptions) -> None:
    """Run the demo, and print what it does line by line."""
    if options.out.exists() and not options.out.is_dir():
        raise BadUsage(f"--out must be a folder, but {str(options.out)!r} is a file")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console = Console(highlight=False, quiet=options.quiet)
    run(options.out, lambda line: console.print(line, markup=False, soft_wrap=True))


def run(folder: Path, report: Report) -> None:
    """Train, certify, and write the model, records and pictures into `folder`."""
    files = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    architecture = fc1(SHAPE, hidden=256)
    report(f"training a network 784-256-10 on 2,000 digits with C-PER, l_inf, eps {EPS} …")
    model, metrics = train(architecture_seed=0, epochs=EPOCHS, report=report)
    files.write_text(files.metrics, "".join(json.dumps(row) + "\n" for row in metrics))
    save(model, files.model, architecture, SHAPE)
    network, test = capture(model, SHAPE), data.load("mnist-sample", "test")
    ball = Ball(eps=EPS, low=0.0, high=1.0)
    report("certifying 500 test digits, rigorously …")
    certs = certify(network, test.x, test.y, ball)
    certs.save(folder / "certificates.csv")
    for line in table(certs, network, test):
        report(line)
    index = int(certs.certified.nonzero()[0])
    two_phases(network, test.x[index], int(test.y[index]), folder / "two_phases.png", upper=0.4)
    found = largest_radius(network, test.x[:40], test.y[:40], upper=0.4, low=0.0, high=1.0)
    digits(test.x[:40], found.radius, folder / "digits.png", target=EPS)
    report("searching for each digit's largest radius and attacking it, for the report …")
    evaluate(network, test.x, test.y, ball, about=ABOUT, upper=0.4, samples=True, out=files.record)
    write_report([folder], folder / "report.html")
    report(f"written to {folder}: {files.model.name}, certificates.csv, two_phases.png, digits.png")
    report(f"open {folder / 'report.html'} in a browser")


def table(certs: Certificates, network: Network, test: data.Dataset) -> list[str]:
    """Return the lines of the demo's summary, with three ways to certify the same network."""
    ball = Ball(eps=EPS, low=0.0, high=1.0)
    lines = ["", f"{'method':<22}{'clean error':>12}{'robust error':>14}{'mean radius':>13}"]
    rows = {
        "IBP": certify(network, test.x, test.y, ball, method="ibp"),
        "PEC (CROWN, parallel)": certs,
        "PEC (CROWN, best)": certify(network, test.x, test.y, ball, relaxation="best"),
    }
    for name, record in rows.items():
        found = record.summary()
        lines.append(f"{name:<22}{found['CTE']:>10.1f} %{found['CRE']:>12.1f} %{found['ACB']:>13.4f}")
    return [*lines, ""]


def train(architecture_seed: int, epochs: int, report: Report) -> tuple[nn.Module, list[dict[str, float]]]:
    """Train by C-PER in its simplest form; returns the model and a row of metrics for each epoch.

    After a plain warm-up, eps grows to a little more than its target.
    """
    metrics: list[dict[str, float]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(architecture_seed)
        model = build(fc1(SHAPE, hidden=256))
        network, sample = capture(model, SHAPE), data.load("mnist-sample", "train")
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: 1.0 if epoch < 0.7 * epochs else 0.2)
        clock = time.perf_counter()
        for epoch in range(epochs):
            ramp = min(1.0, max(0.0, (epoch - WARM_UP + 1) / (0.5 * epochs)))
            loss = PER(alpha=0.15, gamma=0.5) if ramp > 0 else Plain()
            ball = Ball(eps=1.05 * EPS * ramp, low=0.0, high=1.0)
            total = 0.0
            for batch in torch.randperm(len(sample)).split(BATCH):
                optimiser.zero_grad()
                value = loss(network, sample.x[batch], sample.y[batch], ball)
                value.backward()
                optimiser.step()
                total += value.item() * len(batch)
            decay.step()
            metrics.append({"epoch": epoch + 1, "loss": total / len(sample), "eps": float(ball.eps)})
            if (epoch + 1) % 10 == 0:
                report(f"  epoch {epoch + 1} of {epochs}, loss {value.item():.3f}, {time.perf_counter() - clock:.0f} s")
    return model.eval(), metrics
