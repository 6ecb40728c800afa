"""Lambdas: the functions that AWS calls, each a thin edge on code that runs everywhere."""
