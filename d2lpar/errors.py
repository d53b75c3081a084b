"""What can go wrong, named. The command line shows any of these as one line, exit 2."""

import re


class D2lparError(Exception):
    """Base of the errors whose message is meant for the person at the keyboard."""

    exit_code = 2


class MXNetMissingError(D2lparError, ImportError):
    """MXNet, or a shared library it links, cannot be loaded."""


class DeviceError(D2lparError, ValueError):
    """A device was asked for that is not there or that this MXNet has no code for."""


class DataError(D2lparError, ValueError):
    """A data file is missing, truncated, corrupt or foreign."""


class SettingError(D2lparError, ValueError):
    """A setting is outside what it can be: a negative epoch count, a NaN rate."""


class RecordError(D2lparError, ValueError):
    """A record file cannot be read as one."""


class DivergedError(D2lparError, ArithmeticError):
    """The training loss is no longer a number."""


class RunError(D2lparError, RuntimeError):
    """A measuring process ended without finishing its work."""


class DiedError(RunError):
    """A measuring process was killed or crashed: the same again may well succeed."""

    exit_code = 3


class CheckpointError(D2lparError, ValueError):
    """A checkpoint is damaged, foreign, or of something else."""


# Lines that belong to a Python or C++ trace, and empty ones.
_TRACE = re.compile(r"\s|$|Traceback|Stack trace|\[bt\]")


def telling_line(text: str) -> str:
    """The line of an error's text, or of a process's stderr, that names the cause."""
    lines = [line for line in text.splitlines() if not _TRACE.match(line)]
    named = [line for line in lines if "Error:" in line or "Check failed" in line]
    return (named or lines or [""])[0]


def first_line(error: Exception) -> str:
    """The line of an MXNet error that names the cause, without its C++ trace."""
    return f"MXNet: {telling_line(str(error)) or 'unknown error'}"
