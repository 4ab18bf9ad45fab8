"""Values of type VARIANT in their binary form, many at a time."""
