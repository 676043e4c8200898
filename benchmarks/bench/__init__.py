"""Benchmarks of specswitch against the servers it stands between; ``benchmarks/run.py`` is the command."""
