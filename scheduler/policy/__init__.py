"""The decisions of a daemon. Events and the time come in, effects go out; nothing here reads, writes or waits."""
