"""link.bandwidth: a link's direction carries no more than so many bits a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaoskit.faults.base import LinkHits
from chaoskit.faults.link import LinkFault
from chaoskit.plan import Setting


class LinkBandwidth(LinkFault):
    """A cap on the payload bytes of one direction, shared by all its connections."""

    kind = "link.bandwidth"
    stands_for = (
        "A congested or shaped path: a shared uplink, a throttled tenant, a backup link after the main one failed."
    )
    does_not_certify = "Packet loss, retransmission and fairness between flows: bytes are paced in order, above TCP."
    settings = (
        Setting(name="rate", unit="rate", required=True, default=None, about="payload bits a second, per direction"),
    )

    def link_settings(self) -> Mapping[str, Any]:
        return {"kind": "bandwidth", "rate_bit_s": self.values["rate_bit_s"]}

    def proof(self, hits: LinkHits) -> bool:
        return hits.bytes_hit > 0 and hits.delay_total_s > 0
