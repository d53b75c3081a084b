"""The command line: flags, commands and errors; no science."""
