"""The demo: five scenes, one for each thing that Postroad does, and a failure to repair."""
