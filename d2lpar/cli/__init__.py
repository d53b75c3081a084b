"""The command line: flags, progress, errors, doctor and watch; no science."""
