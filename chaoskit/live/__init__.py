"""The view of a run while it is on, in a terminal or as plain log lines.

    journal.jsonl ──┐
    tape/*.jsonl  ──┴──▶ Follower ──▶ RunState.apply ──▶ drawn in a terminal, or one plain line for each event

The view reads nothing but the files of the run folder, so it can be opened on any run, and a run does not notice
whether somebody looks.
"""

from chaoskit.live.state import RunState
from chaoskit.live.view import LiveView

__all__ = ["LiveView", "RunState"]
