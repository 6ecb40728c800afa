"""Topologies on AWS: one file reads, makes, changes and removes the resources of a service."""
