"""The commands of people: what they may be, how they are read, and what they print. Each is a program of its own."""
