"""Change feeds: messages as typed rows, in the order of their source, written to tables."""
