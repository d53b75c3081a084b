"""This computer: its cores, its GPUs, how busy they are, and which MXNet it has.

Nothing in this room imports MXNet.
"""
