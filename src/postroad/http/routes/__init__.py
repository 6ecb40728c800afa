"""Routes: one file for each thing that the API speaks of."""
