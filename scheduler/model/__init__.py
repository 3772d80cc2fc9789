"""Facts and grammar that all other packages share: states, events, configuration, protocol. It does nothing."""
