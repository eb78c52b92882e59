"""``otel-lifecycle compare``."""

from __future__ import annotations

import click
from rich.text import Text

from otel_lifecycle._analysis.comparison import sweep
from otel_lifecycle._analysis.comparison.blocks import ENOUGH_RUNS
from otel_lifecycle._analysis.comparison.conditions import Difference, differences
from otel_lifecycle._analysis.comparison.document import Result
from otel_lifecycle._analysis.comparison.gates import Gate, gate_of, not_judged, rule
from otel_lifecycle._analysis.comparison.sides import Run, Side, run_of
from otel_lifecycle._analysis.comparison.verdicts import MIN_EFFECT, ONE_RUN_EFFECT, usual_effect
from otel_lifecycle._analysis.comparison.verdicts import compare as compared
from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._analysis.stated import KEYS
from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.progress import working
from otel_lifecycle._cli.commands.report import read_workload
from otel_lifecycle._cli.render.output import show
from otel_lifecycle._cli.render.sweep import presented as sweep_presented
from otel_lifecycle._cli.render.terminal import console
from otel_lifecycle._table.errors import FOUND, OK, Unusable

VARIABLE = (
    *KEYS,
    "input tokens",
    "output tokens",
    "cached input",
    "workload classes",
    "arrivals",
    "clients in flight",
    "rate of arrivals",
)


@click.command(
    help="Two runs of the same workload, side by side; more runs as a table, with the front of throughput against"
    " latency.\n\n"
    "A run differs from the next by whatever else the machine did, so several of each side tell more than a long one:"
    f" from {ENOUGH_RUNS} on the runs are compared, and runs made by turns (one, other, one, other) as neighbours.\n\n"
    "Exit code 0: compared. 1: a --fail-on gate was crossed. 2: not comparable, an unknown metric, a side without"
    " samples, or a gate that needs more of them or more runs.\n\n" + options.SOURCES
)
@click.argument("baseline")
@click.argument("candidate")
@click.argument("further", metavar="[RUN]...", nargs=-1)
@click.option("--baseline-run", "more_baseline", multiple=True, metavar="SOURCE", help="One more run of the baseline.")
@click.option("--candidate-run", "more_candidate", multiple=True, metavar="SOURCE", help="One more of the candidate.")
@click.option("--vary", multiple=True, metavar="CONDITION", help="A condition that is meant to differ: 'batch size'.")
@click.option("--force", is_flag=True, help="Compare even where conditions differ.")
@click.option("--fail-on", multiple=True, metavar="METRIC=LIMIT", help="Exit 1 beyond a change: ttft.p95=+5%.")
@click.option(
    "--gate",
    type=click.Choice(["evidence", "estimate"]),
    default="evidence",
    show_default=True,
    help="Fail beyond the limit only where the verdict is better or worse, or by the bare estimate.",
)
@click.option(
    "--min-effect",
    type=click.FloatRange(min=0),
    help="Smallest relative change worth a verdict.",
    show_default=f"{ONE_RUN_EFFECT:g}, from {ENOUGH_RUNS} runs a side {MIN_EFFECT:g}",
)
@options.slo_option
@options.shape_option
@options.output_options
def compare(
    baseline: str,
    candidate: str,
    further: tuple[str, ...],
    more_baseline: tuple[str, ...],
    more_candidate: tuple[str, ...],
    vary: tuple[str, ...],
    force: bool,
    fail_on: tuple[str, ...],
    gate: str,
    min_effect: float | None,
    slo: str | None,
    shape: str,
    form: str | None,
    html: str | None,
) -> int:
    """Compare two sides."""
    gates = [gate_of(text) for text in fail_on]
    vary = _conditions(vary)
    settings = WorkloadSettings(slo=options.slo_of(slo), shape=shape)
    if further:
        if gates or vary or more_baseline or more_candidate:
            raise click.UsageError("gates, conditions and further runs of a side are for two sides")
        return _sweep((baseline, candidate, *further), settings, form, html)
    one = _side("baseline", (baseline, *more_baseline), settings)
    other = _side("candidate", (candidate, *more_candidate), settings)
    result = _judge(one, other, vary, gates, evidence=gate == "evidence", min_effect=min_effect, force=force)
    _show(result, form, html)
    return _code(result)


def _sweep(sources: tuple[str, ...], settings: WorkloadSettings, form: str | None, html: str | None) -> int:
    """Compare more than two runs, by their figures alone."""
    runs = []
    for source in sources:
        workload = read_workload((source,), settings)
        if not workload.total:
            raise Unusable(f"no live request in {source}")
        runs.append(sweep.sweep_run(source, workload))
        # One run at a time: a table holds as much memory as the database may use.
        workload.table.close()
    runs = sweep.with_front(runs)
    show(sweep_presented(runs), form, html)
    return OK


def _conditions(vary: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.replace("_", " ") for name in vary)
    unknown = [name for name in names if name not in VARIABLE]
    if unknown:
        raise Unusable(f"--vary {unknown[0]}: the conditions are {', '.join(VARIABLE)}")
    return names


def _code(result: Result) -> int:
    """Return the exit code; Unusable where none has failed, but one cannot be judged."""
    untold = not_judged(result.rulings)
    # A failed gate wins over one that cannot be judged: the build must stop for the known reason.
    if any(ruling.failed for ruling in result.rulings):
        if untold:
            click.echo(untold, err=True)
        return FOUND
    if untold:
        raise Unusable(untold)
    return OK


def _side(name: str, sources: tuple[str, ...], settings: WorkloadSettings) -> Side:
    # Each source is one run: several files of one run need a folder or a pattern.
    return Side(name=name, sources=sources, runs=[_run(name, source, settings) for source in sources])


def _run(name: str, source: str, settings: WorkloadSettings) -> Run:
    workload = read_workload((source,), settings)
    if not workload.total:
        raise Unusable(f"the {name} has no live request in {source}")
    return run_of(workload)


def _judge(
    one: Side,
    other: Side,
    vary: tuple[str, ...],
    gates: list[Gate],
    *,
    evidence: bool,
    min_effect: float | None,
    force: bool,
) -> Result:
    """Compare the sides; Unusable where they differ in what was not meant to, unless forced."""
    varied, unmeant = _told_apart(differences(one, other), vary)
    if unmeant and not force:
        raise Unusable(_refusal(unmeant))
    effect = usual_effect(one, other) if min_effect is None else min_effect
    with working("comparing"):
        figures = compared(one, other, effect, [one_gate.metric for one_gate in gates])
    return Result(
        baseline=one,
        candidate=other,
        differences=unmeant,
        varied=varied,
        figures=figures,
        min_effect=effect,
        rulings=[rule(one_gate, figures, evidence=evidence) for one_gate in gates],
        forced=force,
    )


def _told_apart(found: list[Difference], vary: tuple[str, ...]) -> tuple[list[Difference], list[Difference]]:
    """Return the differences that were meant, and the others."""
    meant = [difference for difference in found if difference.condition in vary]
    return meant, [difference for difference in found if difference.condition not in vary]


def _refusal(found: list[Difference]) -> str:
    # Refused by default: a verdict on two different workloads is wrong in a way that no interval shows.
    lines = [f"  {one.condition}: {one.baseline} against {one.candidate}" for one in found]
    return "\n".join(
        [
            "these are not two runs of one workload; they differ in",
            *lines,
            "if one of them is the change under test, use --vary CONDITION; --force compares anyway",
        ]
    )


def _show(result: Result, form: str | None, html: str | None) -> None:
    if result.differences:
        names = ", ".join(one.condition for one in result.differences)
        told = Text(f"WARNING: compared by force, though these conditions differ: {names}", style="bold red")
        console(stderr=True).print(told, soft_wrap=True)
    # After the refusal above, which needs no drawing.
    from otel_lifecycle._cli.render.comparison import presented

    show(presented(result), form, html)
