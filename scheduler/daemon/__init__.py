"""The daemon: wires the core to the database, to processes and to hosts, and runs the loop."""
