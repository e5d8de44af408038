"""The command line. Every command ends with an exit code of `chaoskit.errors.ExitCode`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

import chaoskit
from chaoskit.errors import ChaoskitError, ExitCode

REPORTS = Path("reports")

plan_argument = click.argument("plan", type=click.Path(path_type=Path))
run_argument = click.argument("run", type=click.Path(path_type=Path))
reports_option = click.option(
    "--reports", type=click.Path(path_type=Path), default=REPORTS, show_default=True, help="Folder that keeps the runs."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(chaoskit.__version__, prog_name="chaoskit")
def cli() -> None:
    """Chaos engineering for asynchronous, low-communication training."""


@cli.command()
@plan_argument
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Instead of the plan's own seed.")
@reports_option
@click.option("--fresh-control", is_flag=True, help="Make the control run again, also where a fitting one is there.")
def run(plan: Path, seed: int | None, reports: Path, *, fresh_control: bool) -> None:
    """Make a run of PLAN: control run, chaos, heal, judge, report."""
    from chaoskit.live import LiveView
    from chaoskit.run import View, run_plan

    console = Console()

    @contextmanager
    def open_view(run_dir: Path) -> Iterator[View]:
        with LiveView(run_dir, console) as view:
            yield view

    finished = run_plan(
        plan, seed=seed, reports_dir=reports, open_view=open_view, fresh_control=fresh_control, say=click.echo
    )
    _print_conclusion(finished.conclusion.word, finished.conclusion.why, finished.reports)
    sys.exit(finished.conclusion.exit_code)


@cli.command()
@click.argument("plans", type=click.Path(path_type=Path), nargs=-1, required=True)
def validate(plans: tuple[Path, ...]) -> None:
    """Check PLANS and their targets; start nothing."""
    from chaoskit.plans import load
    from chaoskit.run import check_programs

    worst = ExitCode.PASSED
    for path in plans:
        try:
            plan, target = load(path)
            check_programs(target)
        except ChaoskitError as error:
            click.echo(str(error), err=True)
            worst = error.exit_code
            continue
        note = "; no [[expect]], so every probe with its default tolerance" if plan.defaulted else ""
        click.echo(f"{path}: valid; faults: {len(plan.faults)}, roles: {len(target.roles_by_name)}{note}")
    sys.exit(worst)


@cli.command()
@run_argument
def report(run: Path) -> None:
    """Judge a RUN folder again and write its reports anew."""
    from chaoskit.run import report as write_report

    finished = write_report(run)
    _print_conclusion(finished.conclusion.word, finished.conclusion.why, finished.reports)
    sys.exit(finished.conclusion.exit_code)


@cli.command()
@run_argument
def status(run: Path) -> None:
    """What a RUN that is on is doing, as JSON."""
    import msgspec

    from chaoskit.daemon.control import ask

    click.echo(msgspec.json.format(msgspec.json.encode(ask(run, "status"))).decode())


@cli.command()
@run_argument
def stop(run: Path) -> None:
    """Heal a RUN that is on, now, and finish its journal."""
    from chaoskit.daemon.control import ask

    ask(run, "stop")
    click.echo(f"{run}: asked to heal and stop")


@cli.command()
@click.argument("runs", type=click.Path(path_type=Path, exists=True, file_okay=False), nargs=-1)
@reports_option
def recover(runs: tuple[Path, ...], reports: Path) -> None:
    """End whatever dead RUNS left (default: every run under --reports), and say what cannot be proved clean."""
    from chaoskit.daemon.recover import recover as end
    from chaoskit.run import unfinished_runs

    unproved: list[str] = []
    found = runs or unfinished_runs(reports.resolve())
    if not found:
        click.echo(f"{reports}: nothing to recover; every run here was closed")
    for run_dir in found:
        recovery = end(run_dir.resolve())
        unproved += recovery.unproved
        click.echo(f"{run_dir}: ended {', '.join(recovery.killed) or 'nothing, for nothing was left'}")
        for item in recovery.unproved:
            click.echo(f"{run_dir}: NOT PROVED CLEAN: {item}", err=True)
    sys.exit(ExitCode.RESIDUE if unproved else ExitCode.PASSED)


def _print_conclusion(word: str, why: str, reports: dict[str, Path]) -> None:
    """The verdict and the report's path come last, so that they are what stands at the bottom of a terminal."""
    click.echo()
    click.echo(f"{word}: {why}")
    click.echo(f"report: {reports['html']}")


def main() -> None:
    """Console script `chaoskit`."""
    try:
        cli(standalone_mode=False)
    except ChaoskitError as error:
        click.echo(f"chaoskit: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.INVALID)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(ExitCode.INTERRUPTED)
    except Exception:  # noqa: BLE001 - the outermost frame: an unforeseen error is code 6, never Python's 1 (a probe failed)
        traceback.print_exc()
        click.echo("chaoskit: this is a bug in chaoskit; the traceback above belongs into its report", err=True)
        sys.exit(ExitCode.INTERNAL)


if __name__ == "__main__":
    main()
