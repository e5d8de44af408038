"""The journal: what did happen. Written by the daemon, read by everyone; merged with the target's event
tapes."""

from chaoskit.journal.follow import Follower
from chaoskit.journal.history import History, InjectionEntry, history, merge
from chaoskit.journal.log import FORMAT, AppendLog, Record, read_log

__all__ = [
    "FORMAT",
    "AppendLog",
    "Follower",
    "History",
    "InjectionEntry",
    "Record",
    "history",
    "merge",
    "read_log",
]
