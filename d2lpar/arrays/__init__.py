"""The sources' array operations, timed on any devices, beside NumPy and PyTorch."""
