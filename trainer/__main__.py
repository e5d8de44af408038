"""`python -m trainer`: train without any chaos; or one role of a run, started by something else.

python -m trainer                                    syncer, evaluator and learners as processes on this machine
python -m trainer syncer|learner|evaluator ...       one of them (see --help)
python -m trainer replay --run DIR                   refold every merge of a run and print its digests
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from trainer import config as configuration
from trainer.options import RoleOptions

PR_SET_PDEATHSIG = 1
DIE_WITH_PARENT = "TRAINER_DIE_WITH_PARENT"
LOG_LEVELS = ("debug", "info", "warning", "error")
SEED_MAX = 2**63 - 1
DEFAULTS: dict[str, Any] = {"config": None, "set": [], "corpus": None, "seed": 1, "log_level": "warning"}


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 done or asked to end, 1 failed, 2 wrong usage."""
    options = _options(arguments)
    form = f"%(asctime)s {options.role or 'launch'}: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=options.log_level.upper(), format=form)
    _die_with_parent_if_asked()
    try:
        return _run(options)
    except configuration.ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    from trainer.durable import DurableError

    try:
        if options.role == "replay":
            from trainer import replay

            return replay.run(options.run, prune=options.prune)
        corpus = [f"task.corpus={options.corpus.absolute()}"] if options.corpus else []
        config = configuration.load(options.config, [*options.set, *corpus])
        if options.role is None:
            from trainer import launch

            return launch.run(config, out=options.out, seed=options.seed)
        role = RoleOptions(config, options.state, options.tape, options.seed, options.run_id)
        if options.role == "syncer":
            from trainer import shell_syncer

            return shell_syncer.run(role)
        if options.role == "learner":
            from trainer import shell_learner

            return shell_learner.run(role, options.learner, options.index)
        from trainer import evaluator

        return evaluator.run(role)
    except DurableError as error:
        print(error, file=sys.stderr)
        return 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    """Options may stand before the role and behind it. What a role would have to ignore is wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    options.set = [*options.set, *vars(options).pop("role_set", [])]
    if options.role and options.out:
        parser.error(f"--out is for a whole run; {options.role} writes where its own options say (--help)")
    if options.role == "replay":
        given = [name for name in ("config", "set", "corpus", "seed") if getattr(options, name) != DEFAULTS[name]]
        if given:
            parser.error(f"--{given[0]}: replay takes everything from the run's run.json; leave it out")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="A reference Decoupled DiLoCo trainer.")
    _common(parser)
    parser.set_defaults(**DEFAULTS)
    parser.add_argument("--out", type=Path, help="folder for the run (default: a temporary one, deleted at the end)")
    roles = parser.add_subparsers(dest="role", metavar="ROLE")
    for name, about in (
        ("syncer", "owns the global parameters"),
        ("learner", "trains on one shard"),
        ("evaluator", "measures the loss of the global parameters"),
    ):
        role = roles.add_parser(name, help=about)
        _common(role, set_dest="role_set")
        role.add_argument("--state", type=Path, required=True, help="the run's state folder, shared by all roles")
        role.add_argument("--tape", type=Path, help="this process's event tape")
        role.add_argument("--run-id", default="run", help="the syncer refuses learners of another run")
        if name == "learner":
            role.add_argument("--learner", required=True, help="role name, learner-0 to learner-(M-1)")
            role.add_argument("--index", type=int, required=True, help="which shard of the text, 0 to M-1")
    replay = roles.add_parser("replay", help="refold a run's recorded contributions, print digests")
    replay.add_argument("--run", type=Path, required=True)
    replay.add_argument("--prune", action="store_true", help="then delete the contributions, if all digests agree")
    replay.add_argument("--log-level", choices=LOG_LEVELS, default=argparse.SUPPRESS)
    return parser


def _common(parser: argparse.ArgumentParser, set_dest: str = "set") -> None:
    """No defaults here: a role's parser would lay them over what stood before the role."""
    absent = argparse.SUPPRESS
    parser.add_argument("--config", type=Path, default=absent, help="TOML file; see trainer/config.py for every key")
    parser.add_argument(
        "--set", action="append", default=absent, dest=set_dest, metavar="SECTION.KEY=VALUE", help="overrides one key"
    )
    parser.add_argument(
        "--corpus", type=Path, default=absent,
        help="text of your own, a file or a folder: short for --set task.corpus=",
    )  # fmt: skip
    parser.add_argument("--seed", type=_seed, default=absent)
    parser.add_argument("--log-level", default=absent, choices=LOG_LEVELS)


def _seed(text: str) -> int:
    """Seeds are keys of a counter-based generator, which are unsigned."""
    if not text.isdecimal() or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: expected a whole number from 0 to {SEED_MAX}")
    return int(text)


def _die_with_parent_if_asked() -> None:
    """A launcher that is SIGKILLed cannot end its children; the kernel can (Linux)."""
    if os.environ.get(DIE_WITH_PARENT) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Tapes and state are on disk already, and taking torch apart costs half a second that a restart would wait for.
    os._exit(status)
