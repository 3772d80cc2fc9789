"""The bridge: a process for each SSH host, which owns paramiko and its threads, so that the daemon needs neither.

The daemon passes it pipe ends over a socket and sees pipes and reports only (model/ssh_protocol.py). One thread here
waits in one epoll and does everything but what blocks: connecting, opening a session. That is done by a thread of its
own each time, which ends with it. paramiko has one thread a connection, which reads and decrypts; what it has for us
it puts into buffers, and rings (`calls`).

    talk        requests in, reports out                    agents   the life of one remote agent
    links       connections: how many, when, what is lost   relay     bytes between its pipes and its channel
    connecting  how one connection comes to be              warden   the control session of a connection
    host_keys      which host keys are trusted                 remote   the two shell scripts that run on the host
    wire        a socket for paramiko that never blocks     calls  how other threads settings ours
"""
