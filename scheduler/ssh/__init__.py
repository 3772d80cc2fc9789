"""The process that holds the connections to one SSH host; the daemon talks with it over a socket."""
