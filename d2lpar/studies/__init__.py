"""What the chapters measure beyond training: scaling, arrays, precision, kernels."""
