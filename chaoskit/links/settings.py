"""The faults a link knows, as they travel from the daemon to the proxy, and their strict reading.

A fault here is only what the proxy must know to act on bytes. What real failure it stands for, and what it
does not certify, is said by the fault itself (`chaoskit.faults`). `id` names the injection ("slow#1"); the
counters of the proxy are kept under it, so that each injection has its own evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from chaoskit.errors import ChaoskitError, nearest

DELAY_S_MAX = 600.0
"""Longer than any phase of a run: beyond it a number is a mistake of units, not a delay."""

RATE_BIT_S_MIN = 1_000.0
"""Below it a single Ethernet frame takes 12 s; a partition says better what is meant."""

BURST_BYTES_DEFAULT = 16 * 1024
"""What an idle capped link lets through at once. Small against a fragment (8 MiB), so that caps hold over
the first one.
"""

FAULTS_PER_DIRECTION_MAX = 64


class LinkError(ChaoskitError):
    """A link, a fault or a setting that the proxy refuses. Nothing was changed."""


class ProxyError(ChaoskitError):
    """The proxy process is gone or did not answer within its deadline. `Proxy.restart` replaces it."""


class Latency(msgspec.Struct, frozen=True, tag_field="kind", tag="latency", forbid_unknown_fields=True):
    """Each byte leaves `delay_s` seconds later; throughput is kept, within the bound of what may be in flight."""

    id: str
    delay_s: float

    def __post_init__(self) -> None:
        _check_id(self.id)
        if not (math.isfinite(self.delay_s) and 0 < self.delay_s <= DELAY_S_MAX):
            raise ValueError(f"delay_s is {self.delay_s!r}; expected seconds, above 0 and at most {DELAY_S_MAX:g}")


class Bandwidth(msgspec.Struct, frozen=True, tag_field="kind", tag="bandwidth", forbid_unknown_fields=True):
    """All connections of one direction together pass at most `rate_bit_s` bits a second, after a first burst."""

    id: str
    rate_bit_s: float
    burst_bytes: int = BURST_BYTES_DEFAULT

    def __post_init__(self) -> None:
        _check_id(self.id)
        if not (math.isfinite(self.rate_bit_s) and self.rate_bit_s >= RATE_BIT_S_MIN):
            raise ValueError(
                f"rate_bit_s is {self.rate_bit_s!r}; expected bits a second, at least {RATE_BIT_S_MIN:g} "
                "(use a partition to let nothing pass)"
            )
        if self.burst_bytes < 0:
            raise ValueError(f"burst_bytes is {self.burst_bytes!r}; expected 0 or more")


class Partition(msgspec.Struct, frozen=True, tag_field="kind", tag="partition", forbid_unknown_fields=True):
    """A black hole: nothing leaves, not even the end of a connection; all is held and leaves in order afterwards."""

    id: str

    def __post_init__(self) -> None:
        _check_id(self.id)


LinkFault = Latency | Bandwidth | Partition

FAULT_KINDS: Mapping[str, type[LinkFault]] = {"latency": Latency, "bandwidth": Bandwidth, "partition": Partition}


class LinkOpening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One link of an `open` request, which may be born faulty: no connection escapes before its faults are set."""

    name: str
    fd: int
    upstream: str
    forward: list[dict[str, Any]] = []
    backward: list[dict[str, Any]] = []


def decode_faults(raw: object, where: str) -> tuple[LinkFault, ...]:
    """The faults of one direction from a JSON list. Raises LinkError with place and nearest name."""
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise LinkError(f"{where}: expected a list of faults, got {type(raw).__name__}")
    if len(raw) > FAULTS_PER_DIRECTION_MAX:
        raise LinkError(f"{where}: {len(raw)} faults at once; expected at most {FAULTS_PER_DIRECTION_MAX}")
    faults = tuple(decode_fault(item, f"{where}[{position}]") for position, item in enumerate(raw))
    check_distinct(faults, where)
    return faults


def check_distinct(faults: Sequence[LinkFault], where: str) -> None:
    """Raises LinkError where two faults of one direction share an id: their evidence would be mixed."""
    seen: set[str] = set()
    for fault in faults:
        if fault.id in seen:
            raise LinkError(f"{where}: two faults have the id {fault.id!r}; expected one id per injection")
        seen.add(fault.id)


def decode_fault(raw: object, where: str = "fault") -> LinkFault:
    """One fault from its JSON object. Raises LinkError saying where, what was expected and the nearest name."""
    if not isinstance(raw, Mapping):
        raise LinkError(f"{where}: expected an object with id and kind, got {type(raw).__name__}")
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in FAULT_KINDS:
        expected = ", ".join(sorted(FAULT_KINDS))
        raise LinkError(f"{where}: unknown kind {kind!r}; expected one of {expected}{nearest(str(kind), FAULT_KINDS)}")
    fault_type = FAULT_KINDS[kind]
    fields = (*fault_type.__struct_fields__, "kind")
    for key in raw:
        if key not in fields:
            raise LinkError(f"{where}: unknown key {key!r} of {kind}{nearest(str(key), fields)}")
    try:
        return msgspec.convert(raw, fault_type)
    except msgspec.ValidationError as problem:
        raise LinkError(f"{where} ({kind}): {problem}") from problem


def _check_id(fault_id: str) -> None:
    if not fault_id or len(fault_id) > 200:
        raise ValueError(f"id is {fault_id[:40]!r}; expected the injection's name, 1 to 200 characters")
