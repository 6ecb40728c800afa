"""Topologies on AWS: each kind of resource is read, made, changed and removed by one file."""
