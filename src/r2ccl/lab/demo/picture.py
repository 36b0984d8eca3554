"""The picture of a demonstration: throughput of every NIC while one is cut, and the losses of both runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ..kinds import rate_bits_per_s
from .settings import Settings
from .trial import Trial
from .verdict import Verdict

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")  # told apart by colour-blind eyes, too
_CUT, _QUIET = "#b00020", "#555555"
_DPI, _SHADES = 110, 96  # a third of the size of a picture in full colour
_SMOOTH_S = 0.5  # about two steps: a step computes first and communicates then


def save(path: Path, settings: Settings, verdict: Verdict, calm: Trial, disturbed: Trial, *, emulated: bool) -> None:
    """Draws it to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(10.5, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    halves: Any = figure.subfigures(1, 2, width_ratios=(1.55, 1))
    left, right = halves
    _throughput(left, settings, disturbed, emulated)
    _losses(right, settings, verdict, calm, disturbed)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI)
    Image.open(drawn).convert("RGB").quantize(_SHADES).save(path, optimize=True)


def _throughput(figure: Any, settings: Settings, trial: Trial, emulated: bool) -> None:
    axes = figure.subplots(settings.hosts, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    limit = f" of {settings.rate}" if emulated else ""
    title = f"{settings.hosts} hosts x {settings.rails} NICs{limit}: what each sends while one is cut"
    figure.suptitle(title, fontsize=11, fontweight="bold")
    start_s, end_s = trial.start_s, max(steps[-1].end_s for steps in trial.steps)
    cut_s = None if trial.cut is None else trial.cut.acted_s - start_s
    for host, axis in enumerate(axes):
        for rail in range(settings.rails):
            times, rates = smoothed(trial, (host, rail))
            axis.plot(times, rates, color=_COLOURS[rail % len(_COLOURS)], linewidth=1.6, label=f"rail {rail}")
        axis.set_ylabel(f"host {host}\nMbit/s", fontsize=9)
        axis.set_xlim(0, end_s - start_s)
        if emulated:
            axis.axhline(
                rate_bits_per_s(settings.rate) / 1e6, color=_QUIET, linewidth=0.8, linestyle=":", label="limit"
            )
        if cut_s is not None:
            axis.axvline(cut_s, color=_CUT, linewidth=1.2)
            if _fell_silent(trial, settings, host):
                axis.annotate(
                    f"rail {settings.cut_rail} idles: it would send to the dead NIC",
                    (cut_s, 0.06),
                    xytext=(6, 0),
                    xycoords=("data", "axes fraction"),
                    textcoords="offset points",
                    fontsize=8,
                    color=_QUIET,
                )
        _tidy(axis)
    axes[0].set_ylim(bottom=0)  # shared by all
    if cut_s is not None:
        word = settings.fault if emulated else f"injected {settings.fault} noticed"
        axes[settings.cut_host].annotate(
            f" {word}: host {settings.cut_host} rail {settings.cut_rail}",
            (cut_s, 1.0),
            xycoords=("data", "axes fraction"),
            va="bottom",
            ha="center",
            fontsize=9,
            color=_CUT,
        )
    axes[-1].set_xlabel("seconds since the first step", fontsize=9)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=settings.rails + 1,
        fontsize=8,
        frameon=False,
    )


def _fell_silent(trial: Trial, settings: Settings, host: int) -> bool:
    """Whether the rail of the cut, which another host has no reason to lose, carries nothing there either."""
    if trial.cut is None or host == settings.cut_host:
        return False
    after = [sample for sample in trial.samples if sample.at_s > trial.cut.acted_s + _SMOOTH_S]
    if len(after) < 2:
        return False
    place = host, settings.cut_rail
    sent = after[-1].nics[place][0] - after[0].nics[place][0]
    return sent < 0.01 * (after[0].nics[place][0] - trial.samples[0].nics[place][0])


def _losses(figure: Any, settings: Settings, verdict: Verdict, calm: Trial, disturbed: Trial) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
    figure.suptitle(f"Weights bitwise equal: {'yes' if verdict.equal else 'NO'}", fontsize=11, fontweight="bold")
    steps = range(settings.steps)
    upper.plot(steps, calm.losses(), color="#9ecae1", linewidth=6, label="undisturbed", solid_capstyle="round")
    upper.plot(steps, disturbed.losses(), color="black", linewidth=1.2, label=f"NIC cut at step {settings.cut_step}")
    upper.set_ylabel("loss", fontsize=9)
    upper.set_yscale("log")
    upper.yaxis.set_major_formatter("{x:g}")
    upper.legend(loc="upper right", fontsize=8, frameon=False)
    lower.plot(steps, [calm.step_s(i) * 1e3 for i in steps], color="#9ecae1", linewidth=3)
    lower.plot(steps, [disturbed.step_s(i) * 1e3 for i in steps], color="black", linewidth=1.2)
    lower.set_ylabel("ms a step", fontsize=9)
    lower.set_ylim(bottom=0)
    lower.set_xlabel("step", fontsize=9)
    for axis in (upper, lower):
        axis.axvline(settings.cut_step if verdict.hit_step is None else verdict.hit_step, color=_CUT, linewidth=1.2)
        _tidy(axis)
    facts = f"{verdict.replayed} chunks replayed in {verdict.repair_ms:.0f} ms; test accuracy {verdict.accuracy:.1%}"
    upper.set_title(facts, fontsize=9, color=_QUIET)


def smoothed(trial: Trial, place: tuple[int, int]) -> tuple[list[float], list[float]]:
    """Times (s since the first step) and sent Mbit/s of a NIC, over windows that end at each sample.

    A window never reaches across the cut, so that the picture shows no traffic of before as one of after.
    """
    times: list[float] = []
    rates: list[float] = []
    first = 0
    cut_s = None if trial.cut is None else trial.cut.acted_s
    for last, sample in enumerate(trial.samples):
        while sample.at_s - trial.samples[first].at_s > _SMOOTH_S:
            first += 1
        while (
            cut_s is not None and trial.samples[first].at_s < cut_s <= trial.samples[last - 1].at_s and first < last - 1
        ):
            first += 1
        span_s = sample.at_s - trial.samples[first].at_s
        if span_s > 0:
            sent = sample.nics[place][0] - trial.samples[first].nics[place][0]
            times.append(sample.at_s - trial.start_s)
            rates.append(sent * 8e-6 / span_s)
    return times, rates


def _tidy(axis: Any) -> None:
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
