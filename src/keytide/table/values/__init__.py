"""Values as they come from users, in the exact types of columns."""
