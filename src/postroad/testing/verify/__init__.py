"""`postroad verify`: breaks a running system on purpose and counts from outside what was lost, doubled or reordered."""
