"""The trainer's configuration: a TOML file, validated whole, with `--set section.key=value` on top.

Try it: `python -m trainer --set task.steps=64` trains for a few seconds; a misspelt key is refused with the nearest
valid one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import xxhash


class ConfigError(Exception):
    """The configuration is wrong. The text says where, what was expected, and how to go on."""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A byte-level transformer. `width` must be a multiple of `heads`."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 32
    """T: tokens of one training sequence."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every learner trains on, and how long."""

    corpus: str = ""
    """A file or folder of text. Empty: the sources of the Python standard library."""
    corpus_mib_max: int = 8
    batch: int = 8
    steps: int = 2000
    """S: the run ends after S * P / H merges, so S is a multiple of H."""
    learning_rate: float = 0.005
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decoupled DiLoCo under the paper's own symbols."""

    M: int = 4
    """Learners."""
    P: int = 8
    """Fragments."""
    H: int = 16
    """Inner steps between two merges of one fragment."""
    tau: int = 2
    """Steps over which one exchange may overlap computing; also the number of rounds in flight."""
    K: int = 1
    """Least quorum, 1 <= K <= M."""
    gamma: float = 0.5
    """Share of the slack spent as grace."""
    average_decay: float = 0.25
    """Weight of the newest sample in the exponential moving averages."""
    staleness_max: int = 1
    """S of invariant S9: an update for version v has a base of v - 1 - S or later."""
    outer_lr: float = 0.7
    outer_momentum: float = 0.5
    norm_guard: float = 20.0
    """An update whose outer gradient is longer than this many medians of its peers' is refused; 0: no guard."""


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deadlines of the shells, in seconds. Every wait of the trainer is named here."""

    ping_s: float = 1.0
    silent_s: float = 2.5
    """A learner unheard for this long is not waited for, gets no broadcasts and does not set the pace."""
    idle_s: float = 10.0
    """A peer unheard for this long is closed; the learner connects again."""
    hello_s: float = 5.0
    """A connection that has not said hello by then is closed."""
    connect_s: float = 5.0
    backoff_s_min: float = 0.05
    backoff_s_max: float = 1.0
    first_join_s: float = 120.0
    """A process that has no parameters yet ends when it could not join by then."""
    rejoin_s: float = 60.0
    """A learner that has lost its syncer trains on, and ends when it could not join again within this time."""
    grace_s_max: float = 1.0
    """The grace window is a share of the slack, at most one inner step, and never longer than this."""
    leave_s: float = 5.0
    """How long the syncer waits for learners to leave after the end."""


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The evaluator reads the global parameters from the syncer's durable state."""

    every_merges: int = 16
    sequences: int = 256


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contributions kept for `python -m trainer replay`."""

    contributions: bool = True
    contributions_mib_max: int = 512


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: Model = Model()
    task: Task = Task()
    protocol: Protocol = Protocol()
    timing: Timing = Timing()
    evaluation: Evaluation = Evaluation()
    recording: Recording = Recording()

    @property
    def rounds_total(self) -> int:
        """S * P / H: every fragment is merged S / H times."""
        return self.task.steps // self.protocol.H * self.protocol.P

    @property
    def versions_total(self) -> int:
        """Merges of one fragment in a whole run."""
        return self.task.steps // self.protocol.H

    @property
    def tokens_per_step(self) -> int:
        return self.task.batch * self.model.context

    def digest(self) -> str:
        """16 hex digits over everything that both sides of a connection must agree on."""
        shared = (self.model, self.task, self.protocol)
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(shared))


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read `path` (None: defaults), lay `section.key=value` overrides over it, validate.

    Raises:
        ConfigError: naming the file, the key, what was expected and the nearest valid name.
    """
    where = str(path) if path else "the defaults"
    raw: dict[str, Any] = {}
    if path:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such configuration file") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a TOML file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for text in overrides:
        _override(raw, text)
    return from_mapping(raw, where)


def from_mapping(raw: Mapping[str, Any], where: str) -> Config:
    """A validated `Config` from nested plain data; `where` begins every error text."""
    _refuse_unknown_keys(raw, where)
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    problems = _problems(config)
    if problems:
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in problems))
    return config


def _override(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot or not name:
        raise ConfigError(f"--set {text}: expected section.key=value, for example task.steps=320")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a bare word is a string: --set task.corpus=/some/folder needs no quotes
    raw.setdefault(section, {})[name] = parsed


def _refuse_unknown_keys(raw: Mapping[str, Any], where: str) -> None:
    for section, content in raw.items():
        if section not in Config.__struct_fields__:
            raise ConfigError(f"{where}: unknown section [{section}]{_nearest(section, Config.__struct_fields__)}")
        if not isinstance(content, Mapping):
            raise ConfigError(f"{where}: {section} must be a section, [{section}], got {content!r}")
        fields = type(getattr(Config(), section)).__struct_fields__
        for key in content:
            if key not in fields:
                raise ConfigError(f"{where}: unknown key {section}.{key}{_nearest(key, fields)}")


def _nearest(name: str, valid: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; valid are {', '.join(valid)}"


def _problems(config: Config) -> list[str]:
    model, task, protocol, timing = config.model, config.task, config.protocol, config.timing
    rules = [
        (
            model.heads >= 1 and model.width >= 1 and model.width % max(model.heads, 1) == 0,
            f"model.width = {model.width} must be a positive multiple of model.heads = {model.heads}",
        ),
        (model.layers >= 1, f"model.layers = {model.layers} must be at least 1"),
        (1 <= model.context <= 1024, f"model.context = {model.context} must be between 1 and 1024"),
        (task.batch >= 1, f"task.batch = {task.batch} must be at least 1"),
        (task.corpus_mib_max >= 1, f"task.corpus_mib_max = {task.corpus_mib_max} must be at least 1"),
        (0 < task.learning_rate <= 1, f"task.learning_rate = {task.learning_rate} must be in (0, 1]"),
        (0 <= task.beta1 < 1 and 0 <= task.beta2 < 1, "task.beta1 and task.beta2 must be in [0, 1)"),
        (protocol.H >= 1, f"protocol.H = {protocol.H} must be at least 1"),
        (
            protocol.H >= 1 and task.steps >= 1 and task.steps % protocol.H == 0,
            f"task.steps = {task.steps} must be a positive multiple of protocol.H = {protocol.H}",
        ),
        (1 <= protocol.M <= 1024, f"protocol.M = {protocol.M} must be between 1 and 1024"),
        (protocol.P >= 1, f"protocol.P = {protocol.P} must be at least 1"),
        (1 <= protocol.K <= protocol.M, f"protocol.K = {protocol.K} must be between 1 and protocol.M = {protocol.M}"),
        (
            1 <= protocol.tau <= protocol.H,
            f"protocol.tau = {protocol.tau} must be between 1 and protocol.H = {protocol.H}",
        ),
        (0 <= protocol.gamma < 1, f"protocol.gamma = {protocol.gamma} must be in [0, 1)"),
        (0 < protocol.average_decay <= 1, f"protocol.average_decay = {protocol.average_decay} must be in (0, 1]"),
        (protocol.staleness_max >= 0, f"protocol.staleness_max = {protocol.staleness_max} must not be negative"),
        (protocol.outer_lr > 0, f"protocol.outer_lr = {protocol.outer_lr} must be positive"),
        (0 <= protocol.outer_momentum < 1, f"protocol.outer_momentum = {protocol.outer_momentum} must be in [0, 1)"),
        (
            protocol.norm_guard == 0 or protocol.norm_guard > 1,
            f"protocol.norm_guard = {protocol.norm_guard} must be above 1, or 0 to switch the guard off",
        ),
        (all(value > 0 for value in msgspec.structs.astuple(timing)), "every timing must be positive"),
        (
            timing.ping_s < timing.silent_s < timing.idle_s,
            "timing must have ping_s < silent_s < idle_s, or a healthy peer would be closed",
        ),
        (config.evaluation.every_merges >= 1, "evaluation.every_merges must be at least 1"),
        (config.evaluation.sequences >= 1, "evaluation.sequences must be at least 1"),
        (config.recording.contributions_mib_max >= 1, "recording.contributions_mib_max must be at least 1"),
    ]
    return [text for holds, text in rules if not holds]
