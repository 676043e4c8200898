"""Imported by the EAGLE worker on every GPU; sparse attention alone calls it."""
