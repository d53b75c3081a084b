"""What runs leave on disk: records, checkpoints, and the numbers computed from them."""
