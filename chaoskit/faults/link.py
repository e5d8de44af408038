"""What the link faults share: imposing on directions, waiting for bytes that were hit, and proving the lift."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from chaoskit.faults.base import Evidence, Fault, Landing, LinkHits, Undoing, World


class LinkFault(Fault):
    """A fault on one or more directions of links. It has landed once the proxy counted bytes that it changed."""

    acts_on = "link"
    evidence_late = True

    @abstractmethod
    def link_settings(self) -> Mapping[str, Any]:
        """What the proxy is told, less the injection's id."""

    @abstractmethod
    def proof(self, hits: LinkHits) -> bool:
        """Whether what the proxy measured proves the harm."""

    async def apply(self, world: World) -> Evidence:
        for direction in self.targets:
            await world.impose(direction, self.injection, self.link_settings())
        return dict(self.link_settings())

    async def landed(self, world: World) -> Landing:
        evidence: dict[str, Any] = {}
        landed = True
        for direction in self.targets:
            hits = await world.wait_hits(direction, self.injection, self.proof, self.hold_s)
            landed = landed and self.proof(hits)
            evidence[direction] = _shown(hits)
        return Landing(landed, evidence)

    async def undo(self, world: World) -> Undoing:
        evidence: dict[str, Any] = {}
        clean = True
        for direction in self.targets:
            before = await world.hits(direction, self.injection)
            await world.lift(direction, self.injection)
            after = await world.hits(direction, self.injection)
            clean = clean and not after.present
            evidence[direction] = _shown(before) | {"still_imposed": after.present}
        return Undoing(clean, evidence)


def _shown(hits: LinkHits) -> dict[str, Any]:
    return {
        "bytes_hit": hits.bytes_hit,
        "delay_median_ms": round(hits.delay_median_s * 1e3, 2),
        "delay_total_s": round(hits.delay_total_s, 3),
        "held_bytes": hits.held_bytes,
    }
