"""link.latency: every byte of a link's direction arrives later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaoskit.faults.base import LinkHits
from chaoskit.faults.link import LinkFault
from chaoskit.plan import Setting

DELAY_SHARE_MIN = 0.97
"""The proxy's median is the middle of a bucket 4.4 % wide."""


class LinkLatency(LinkFault):
    """A constant delay of one direction; the throughput stays (up to the bytes the proxy may hold)."""

    kind = "link.latency"
    stands_for = "Distance: a region further away, a detour after a cable cut."
    does_not_certify = "Reordering, loss and congestion control over a long path: TCP itself still runs over loopback."
    settings = (
        Setting(name="delay", unit="duration", required=True, default=None, about="added to every byte, one way"),
    )

    def link_settings(self) -> Mapping[str, Any]:
        return {"kind": "latency", "delay_s": self.values["delay_s"]}

    def proof(self, hits: LinkHits) -> bool:
        return hits.bytes_hit > 0 and hits.delay_median_s >= DELAY_SHARE_MIN * self.values["delay_s"]
