"""What goes when its time is over, and the files that go with it."""
