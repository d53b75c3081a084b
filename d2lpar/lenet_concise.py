"""The short name of :mod:`d2lpar.lenet.concise`."""

from d2lpar.lenet.concise import *  # noqa: F403
