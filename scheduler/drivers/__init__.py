"""The only code that reads and writes descriptors: the loop, Postgres, processes, SSH hosts, signals and files."""
