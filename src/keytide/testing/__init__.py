"""What others need to test what they build on Keytide."""
