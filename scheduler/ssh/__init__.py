"""The SSH process: one for each SSH host, it holds the connections, paramiko and its threads.

One thread waits in one epoll and does everything but what blocks: connecting, opening a session. Each of these has a
thread of its own, which ends with it. paramiko adds one for each connection. Nothing of this runs in the daemon, which
passes pipe ends over a socket and sees pipes and reports only (drivers/ssh_protocol.py).
"""
