"""link.partition: nothing passes, and nobody is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaoskit.faults.base import LinkHits
from chaoskit.faults.link import LinkFault


class LinkPartition(LinkFault):
    """A black hole: bytes and ends of connections are held back, and flow in order once it is lifted."""

    kind = "link.partition"
    stands_for = "A cut between two sites that a router answers with silence: a failed switch, a wrong firewall rule."
    does_not_certify = (
        "A connection that TCP gives up: the peer's kernel still acknowledges into the proxy, so a sender learns of "
        "the cut only from the silence of the other side or from a full buffer."
    )

    def link_settings(self) -> Mapping[str, Any]:
        return {"kind": "partition"}

    def proof(self, hits: LinkHits) -> bool:
        return hits.bytes_hit > 0
