"""What the link faults share: imposing on directions, waiting for bytes that were hit, and proving the lift."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from chaoskit.faults.base import Evidence, Fault, Landing, LinkHits, Undoing, World


class LinkFault(Fault):
    """A fault on one or more directions of links.

    It has landed once the proxy measured the harm on every link it acts on. Of a link that is hit both ways one way is
    enough: where requests are held back, no answer comes that could be held back as well.
    """

    acts_on = "link"

    @abstractmethod
    def link_settings(self) -> Mapping[str, Any]:
        """What the proxy is told, less the injection's id."""

    @abstractmethod
    def proof(self, hits: LinkHits) -> bool:
        """Whether what the proxy measured on one direction proves the harm."""

    async def apply(self, world: World) -> Evidence:
        for direction in self.targets:
            await world.impose(direction, self.injection, self.link_settings())
        return dict(self.link_settings())

    async def landed(self, world: World) -> Landing:
        hits = await world.wait_hits(self.targets, self.injection, self._enough, self.hold_s)
        return Landing(self._enough(hits), {direction: _shown(hit) for direction, hit in hits.items()})

    async def undo(self, world: World) -> Undoing:
        before = await world.hits(self.targets, self.injection)
        for direction in self.targets:
            await world.lift(direction, self.injection)
        after = await world.hits(self.targets, self.injection)
        evidence = {
            direction: _shown(before[direction]) | {"still_imposed": after[direction].present}
            for direction in self.targets
        }
        return Undoing(not any(hit.present for hit in after.values()), evidence)

    def _enough(self, hits: Mapping[str, LinkHits]) -> bool:
        links = {_ends(direction) for direction in self.targets}
        proved = {_ends(direction) for direction, hit in hits.items() if self.proof(hit)}
        return links == proved


def _ends(direction: str) -> frozenset[str]:
    """The two roles of a direction, whichever way it goes: "a -> b" and "b -> a" are one link."""
    return frozenset(direction.split(" -> "))


def _shown(hits: LinkHits) -> dict[str, Any]:
    return {
        "bytes_hit": hits.bytes_hit,
        "delay_median_ms": round(hits.delay_median_s * 1e3, 2),
        "delay_total_s": round(hits.delay_total_s, 3),
        "held_bytes": hits.held_bytes,
    }
