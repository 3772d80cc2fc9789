"""The SSH process of a host, against a real sshd on loopback or in a network namespace."""
