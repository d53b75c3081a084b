"""This computer: its cores, its GPUs, and which MXNet it has. Imports no MXNet."""
