"""The data plane: one proxy process carries every link of a run, and faults act on the bytes in between.

    learner-0 ──▶ 127.0.0.1:p0 ┐            ┌──▶ syncer (its address is read anew at each connection)
    learner-1 ──▶ 127.0.0.1:p1 ┼── proxy ───┤
    learner-2 ──▶ 127.0.0.1:p2 ┘     ▲      └──▶ syncer
                                     │ control (a socketpair, JSON lines)
                                   daemon, which owns the listening sockets

A *link* is named "learner-0 -> syncer", the connecting side first. *Forward* are the bytes from the
connecting side to the accepting side, *backward* those the other way. Each direction has an immutable
snapshot of its faults; a change swaps the snapshot and nothing is ever re-plumbed. Because the daemon owns
the listening sockets, a proxy that was killed is replaced by a new one on the same ports, and connections
made meanwhile wait in the kernel's backlog.

    settings.py   the faults a link knows, and their strict reading
    shaper.py     the arithmetic of caps and delays: pure, a clock is an argument
    counters.py   what is measured: the evidence that a fault landed
    pipe.py       one direction of one connection: read, shape, pass on, end
    proxy.py      the process: links, connections, control
    control.py    the daemon's side: `Proxy`
"""
