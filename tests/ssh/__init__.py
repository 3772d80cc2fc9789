"""The bridge of an SSH host, against a real sshd on loopback or in a network namespace."""
