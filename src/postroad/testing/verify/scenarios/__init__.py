"""The scenarios of `postroad verify`, one system under test in each file."""
