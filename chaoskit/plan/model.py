"""A plan and its target, read and checked: frozen values that schedule, daemon, probes and report work
from."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from chaoskit.plan.catalogue import SettingValue


@dataclass(frozen=True)
class TimeTrigger:
    """Due so many seconds after chaos begins."""

    after_s: float
    text: str


@dataclass(frozen=True)
class RoundTrigger:
    """Due when the syncer opens this round (rounds count 1, 2, 3, ... over all fragments), or a later one."""

    round: int
    text: str


At = TimeTrigger | RoundTrigger


@dataclass(frozen=True)
class RunSettings:
    """[run]: the seed, how long the gate must hold, and the deadlines of the heal phase and of the whole
    run."""

    seed: int
    steady_s: float
    heal_s: float
    deadline_s: float


@dataclass(frozen=True)
class Limits:
    """[limits]: the most roles down or paused at once, and the roles that no fault on roles may touch."""

    down_max: int
    keep: tuple[str, ...]
    """Names of roles; the globs of the file are resolved."""


@dataclass(frozen=True)
class FaultSpec:
    """[[fault]]: one fault, what it acts on, when, for how long, how."""

    name: str
    kind: str
    acts_on: Literal["role", "link"]
    downs_role: bool
    on: tuple[str, ...]
    """As written: names, globs or links."""
    targets: tuple[str, ...]
    """What `on` names: roles, or directions of links such as "learner-1 -> syncer"."""
    at: At
    hold_s: float | None
    """`for`, in seconds; None where the kind ends by itself."""
    settings: Mapping[str, SettingValue]
    """By the names used in code ("restart_after_s"); defaults filled in."""
    line: int


@dataclass(frozen=True)
class Expect:
    """[[expect]]: a probe and its tolerance, defaults filled in. `line` is None where the plan does not
    mention it."""

    probe: str
    tolerance: Mapping[str, SettingValue]
    line: int | None


@dataclass(frozen=True)
class Plan:
    """What shall happen in a run."""

    name: str
    about: str
    path: str
    source_sha: str
    """SHA-256 of the file's bytes, in hex."""
    target: str
    """Path of the target file."""
    run: RunSettings
    limits: Limits
    faults: tuple[FaultSpec, ...]
    expects: tuple[Expect, ...]
    """One for every known probe: those the plan mentions first, then the others with their defaults."""
    defaulted: bool
    """True if the plan has no [[expect]], so that all expectations are defaults."""


@dataclass(frozen=True)
class RoleSpec:
    """[[role]] of a target: one process, or `count` alike ones named NAME-0, NAME-1, ..."""

    name: str
    count: int | None
    command: tuple[str, ...]
    env: Mapping[str, str]
    ready: str
    """The kind of tape record that means the role is up."""
    stop_signal: str
    line: int

    @property
    def instances(self) -> tuple[str, ...]:
        """The names of its roles: ("syncer",) or ("learner-0", "learner-1", ...)."""
        if self.count is None:
            return (self.name,)
        return tuple(f"{self.name}-{index}" for index in range(self.count))


@dataclass(frozen=True)
class LinkSpec:
    """[[link]] of a target: who connects to whom, and how the address gets from one to the other."""

    from_role: str
    """A glob over the names of roles: the connecting side."""
    to_role: str
    """The name of the role that accepts."""
    address: str
    """The file in which the accepting side publishes host:port."""
    env: str
    """The environment variable that carries the address to the connecting side."""
    line: int


@dataclass(frozen=True)
class Role:
    """One role of a target: one process at a time."""

    name: str
    index: int | None
    """Its number among its like ("learner-2" has 2); None where there is only one."""
    spec: RoleSpec


@dataclass(frozen=True)
class Link:
    """One connection path from a role to another, with its two directions."""

    from_role: str
    to_role: str
    spec: LinkSpec

    @property
    def forward(self) -> str:
        """The direction from the connecting to the accepting side."""
        return f"{self.from_role} -> {self.to_role}"

    @property
    def backward(self) -> str:
        """The direction from the accepting to the connecting side."""
        return f"{self.to_role} -> {self.from_role}"


@dataclass(frozen=True)
class Target:
    """The system under test and how to start it."""

    name: str
    path: str
    source_sha: str
    done_role: str
    """The role whose proper end ends the run."""
    replay: tuple[str, ...] | None
    """The command that computes the outer updates again from the tapes."""
    roles: tuple[RoleSpec, ...]
    links: tuple[LinkSpec, ...]

    @cached_property
    def roles_by_name(self) -> dict[str, Role]:
        """Every role by its name ("learner-2"), in the order of the file."""
        return {
            name: Role(name, None if spec.count is None else index, spec)
            for spec in self.roles
            for index, name in enumerate(spec.instances)
        }

    @cached_property
    def links_expanded(self) -> tuple[Link, ...]:
        """Every link between two roles, in the order of the file. No role has a link to itself."""
        return tuple(
            Link(name, spec.to_role, spec)
            for spec in self.links
            for name in self.roles_by_name
            if matches(name, spec.from_role) and name != spec.to_role
        )

    def link_names(self) -> tuple[str, ...]:
        """The names of all directions: forward and backward of each link, in the order of the file."""
        return tuple(name for link in self.links_expanded for name in (link.forward, link.backward))


class SelectorError(ValueError):
    """A selector of `on` is badly written or matches nothing. Says what was expected."""


LINK_TEXT = re.compile(r"\s*(\S+)\s+(->|<->)\s+(\S+)\s*")
LINK_EXPECTED = "expected a link such as 'learner-1 -> syncer' or 'learner-1 <-> syncer'"


def resolve(on: Iterable[str], target: Target, acts_on: Literal["role", "link"] | None = None) -> tuple[str, ...]:
    """The roles or directions that the selectors name, each once, in the order of the target file.

    A selector is a role's name or glob ("learner-*"), or a link between two such ("learner-* -> syncer" for
    one direction, "learner-1 <-> syncer" for both). Without `acts_on`, a selector with an arrow means links.
    Raises SelectorError if one is badly written, matches nothing, or is of the wrong sort.
    """
    chosen: set[str] = set()
    for selector in on:
        is_link = "->" in selector if acts_on is None else acts_on == "link"
        chosen |= _resolve_link(selector, target) if is_link else _resolve_role(selector, target)
    return tuple(name for name in (*target.roles_by_name, *target.link_names()) if name in chosen)


def matches(name: str, pattern: str) -> bool:
    """Whether the glob matches the name; case matters."""
    return fnmatch.fnmatchcase(name, pattern)


def _resolve_role(selector: str, target: Target) -> set[str]:
    if "->" in selector:
        raise SelectorError(
            "is a link, but the fault acts on roles; expected a role such as 'learner-1' or 'learner-*'"
        )
    found = {name for name in target.roles_by_name if matches(name, selector.strip())}
    if not found:
        raise SelectorError("matches no role of the target; expected " + _names(target.roles_by_name))
    return found


def _resolve_link(selector: str, target: Target) -> set[str]:
    parts = LINK_TEXT.fullmatch(selector)
    if parts is None:
        raise SelectorError(f"is not a link; {LINK_EXPECTED}")
    start, arrow, end = parts.groups()
    for side in (start, end):
        if not any(matches(name, side) for name in target.roles_by_name):
            raise SelectorError(
                f"names {side!r}, which matches no role of the target; expected " + _names(target.roles_by_name)
            )
    pairs = {(start, end), (end, start)} if arrow == "<->" else {(start, end)}
    found = {
        name
        for link in target.links_expanded
        for name, a, b in (
            (link.forward, link.from_role, link.to_role),
            (link.backward, link.to_role, link.from_role),
        )
        if any(matches(a, first) and matches(b, second) for first, second in pairs)
    }
    if not found:
        raise SelectorError("matches no link of the target; expected " + _names(target.link_names()))
    return found


def _names(names: Iterable[str], named_max: int = 8) -> str:
    """ "a, b, c" or "a, b, ... (12 in all)"; says so when there is none."""
    every = list(names)
    if not every:
        return "none: the target has no such thing"
    if len(every) <= named_max:
        return "one of " + ", ".join(every)
    return f"one of {', '.join(every[:named_max])}, ... ({len(every)} in all)"
