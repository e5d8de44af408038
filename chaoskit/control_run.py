"""The control run: the same target and seed without any fault, made once and kept while it holds."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import chaoskit
from chaoskit.errors import JournalError
from chaoskit.journal import history
from chaoskit.plan import Plan, Target

CONTROL = "control"
KEY_CHARACTERS = 12


def control_key(plan: Plan, target: Target, seed: int) -> str:
    """Digest of all that a control run depends on.

    The target file, the files that its commands name beside it, the Python packages they run with `-m`, the seed, and
    this toolkit's version.
    """
    digest = hashlib.sha256()
    for text in (target.source_sha, str(seed), str(plan.run.steady_s), chaoskit.__version__):
        digest.update(text.encode() + b"\0")
    for path in sorted({*_named_files(target), *_module_files(target)}):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:KEY_CHARACTERS]


def cached_control(reports_dir: Path, name: str) -> Path | None:
    """The folder of a control run of this name that completed, or None."""
    for run_dir in sorted((reports_dir / CONTROL).glob(f"{name}-*")):
        try:
            end = history(run_dir).end
        except JournalError:
            # A damaged control run is no control run; another one is made beside it.
            continue
        if end is not None and end["outcome"] == "finished":
            return run_dir
    return None


def _named_files(target: Target) -> Iterator[Path]:
    """Files that the target's commands name by `{here}/...`."""
    here = str(Path(target.path).parent)
    for role in target.roles:
        for word in role.command:
            path = Path(word.replace("{here}", here))
            if "{here}" in word and path.is_file():
                yield path


def _module_files(target: Target) -> Iterator[Path]:
    """The source files of the packages that the target's commands run with `-m`."""
    for role in target.roles:
        for before, name in zip(role.command, role.command[1:], strict=False):
            if before != "-m":
                continue
            spec = importlib.util.find_spec(name.split(".")[0])
            for folder in (spec.submodule_search_locations or []) if spec else []:
                yield from Path(folder).rglob("*.py")
