"""What tests share: records made by hand, faked GPUs, pictures read, commands run."""
