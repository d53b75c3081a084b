"""The command line: flags, progress, errors and doctor; no science."""
