"""The SSH process: one for each SSH host, it holds the connections, paramiko and its threads.

The daemon passes it pipe ends over a socket and sees pipes and reports only (model/ssh_protocol.py). One thread waits
in one epoll and does everything but what blocks: connecting, opening a session. Each of these has a thread of its own,
which ends with it. paramiko adds one thread for each connection.

    __main__         requests in, reports out                control_session    signals and guards agents on the host
    remote_agent     the life of one remote agent            relay              bytes between its pipes and its channel
    connection_pool  how many connections, what is lost      openssh_files      ssh_config and known_hosts
    connect          how one connection is made              paramiko_adapters  a socket that never blocks, a wake-up
"""
