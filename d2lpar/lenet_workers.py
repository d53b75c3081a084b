"""The short name of :mod:`d2lpar.lenet.workers`."""

from d2lpar.lenet.workers import *  # noqa: F403
