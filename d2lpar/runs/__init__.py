"""Measurements in fresh processes: what is run, in which order, and what is kept."""
