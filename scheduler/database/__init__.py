"""Sets up the database before a daemon runs: the embedded server, and the migrations."""
