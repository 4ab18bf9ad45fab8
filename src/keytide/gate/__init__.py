"""What a definition asks of readers and writers that this release does not do."""
