"""Devices that exist only in NumPy: they count what they send, receive and hold."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import numpy

MAX_ROUNDS = 10_000  # an endless loop ends here


class Network:
    """N devices. Each sends one array per round at most, and receives one at most.

    On the `route` "ring" to the next device only, on "hub" to or from device 0. An
    array `shows` its numbers in its repr, or hides them.
    """

    SCORES = ("rounds", "arrays over the busiest link", "held")

    def __init__(self, num_devices: int, route: str = "", shows=True):
        self.rounds, self.route, self.shows = 0, route, shows
        self.messages: list[list[tuple[int, int, int]]] = []  # from, to, elements
        self.sent, self.received, self.held, self.peak = (
            [0] * num_devices for _ in range(4)
        )

    def place(self, k: int, values: numpy.ndarray) -> DeviceArray:
        """A copy of `values` that device k holds."""
        return DeviceArray(self, k, numpy.array(values))

    def hold(self, k: int, values: numpy.ndarray) -> None:
        """Count an array's elements as device k's until nothing refers to it."""
        self.held[k] += values.size
        self.peak[k] = max(self.peak[k], self.held[k])
        weakref.finalize(values, self._release, k, values.size)

    def _release(self, k: int, size: int) -> None:
        self.held[k] -= size

    def exchange(self, messages: Sequence[tuple]) -> list[DeviceArray]:
        """One round: send each (array, to); the copies that arrive, in this order."""
        messages = list(messages)
        self.rounds += 1
        if self.rounds > MAX_ROUNDS:
            raise ValueError(f"more than {MAX_ROUNDS} rounds: does a loop not end?")
        self.messages.append([])
        senders, receivers = set(), set()
        for message in messages:
            if not isinstance(message, (tuple, list)) or len(message) != 2:
                raise ValueError("exchange takes a list of pairs (array, to)")
            array, to = message
            if not isinstance(array, DeviceArray):
                raise ValueError(f"{array!r:.30} is on no device, so none can send it")
            sender = array.device
            if to not in range(len(self.held)) or to == sender:
                raise ValueError(f"device {sender} cannot send to {to!r}")
            after = (sender + 1) % len(self.held)
            if self.route == "ring" and to != after:
                raise ValueError(f"device {sender} sends to {to}; in a ring to {after}")
            if self.route == "hub" and 0 not in (sender, to):
                raise ValueError(f"device {sender} sends to {to}, not through device 0")
            if sender in senders or to in receivers:
                what = f"{sender} sends" if sender in senders else f"{to} receives"
                raise ValueError(f"device {what} twice in one round")
            senders.add(sender)
            receivers.add(to)
            self.messages[-1].append((sender, to, array.size))
            self.sent[sender] += array.size
            self.received[to] += array.size
        return [self.place(to, read(array)) for array, to in messages]

    def scores(self) -> tuple[int, int, int]:
        """Rounds, elements over the busiest link, elements at most held at once."""
        return self.rounds, max(self.sent + self.received), max(self.peak)


# What computes on a device. Numbers of float64 beside float32 stay float32, so that a
# message cannot carry two numbers in one.
UFUNCS = {
    getattr(numpy, name)
    for name in """add subtract multiply divide floor_divide remainder power square sqrt
    exp log negative positive absolute sign maximum minimum matmul greater greater_equal
    less less_equal equal not_equal logical_and logical_or logical_not isnan isfinite
    rint floor ceil bitwise_and bitwise_or invert""".split()
}
OPTIONS = {"axis", "keepdims"}


class OnDevice(numpy.lib.mixins.NDArrayOperatorsMixin):
    """What a solution can do with an array of a device; reading is not among it."""

    __slots__ = ()
    size = property(lambda self: math.prod(self.shape))

    def __len__(self):
        if not self.shape:
            raise TypeError("an array without axes has no len()")
        return self.shape[0]

    def __array_function__(self, function, types, args, kwargs):
        raise TypeError(f"numpy.{function.__name__}: use slices, + - * / and copy()")

    def sum(self):
        return numpy.add.reduce(self, axis=None)

    def _read(self, *_, **__):
        raise ValueError(f"device {self.device}'s numbers are its own: use exchange")

    tolist = item = tobytes = _read
    __float__ = __int__ = __bool__ = __array__ = __reduce_ex__ = _read


class DeviceArray(OnDevice):
    """Numbers that only their device can compute with, and only `exchange` can copy.

    Python cannot hide them: :mod:`d2lpar.puzzles.apart` gives a solution handles.
    """

    __slots__ = ("__device", "__network", "__values")

    def __init__(self, network: Network, device: int, values: numpy.ndarray):
        self.__network, self.__device, self.__values = network, device, values
        if values.flags.owndata:  # a slice is held already
            network.hold(device, values)

    device = property(lambda self: self.__device)
    shape = property(lambda self: self.__values.shape)
    dtype = property(lambda self: self.__values.dtype)

    def __repr__(self):
        text = f"<device {self.device}, shape {self.shape}, {self.dtype}"
        if self.__network.shows:
            text += ": " + numpy.array2string(self.__values, precision=4, threshold=20)
        return text + ">"

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        name = f"numpy.{ufunc.__name__}" + f".{method}" * (method != "__call__")
        if ufunc not in UFUNCS or method not in ("__call__", "reduce"):
            raise TypeError(f"{name}: use slices and + - * /")
        if not all(isinstance(array, DeviceArray) for array in out):
            self._read()
        if options.keys() - OPTIONS:
            raise TypeError(f"{name} takes {' and '.join(sorted(OPTIONS))} only")
        check_one_device(*inputs, *out)
        values = [read(value) for value in inputs]
        if ufunc is numpy.power:  # integers raise an error, which tells that one is < 0
            values = [1.0 * value for value in values]
        if any(numpy.asarray(value).dtype.kind not in "fiub" for value in values):
            raise TypeError(f"{name} takes arrays of devices, numbers, arrays of them")
        if out:
            options["out"] = tuple(map(read, out))
        with numpy.errstate(all="ignore"):  # an error would tell the numbers
            result = numpy.asarray(getattr(ufunc, method)(*values, **options))
        if out:
            return out[0]
        own = [v.dtype for v, i in zip(values, inputs) if isinstance(i, DeviceArray)]
        if result.dtype == "float64" and "float64" not in own:
            result = result.astype("float32")
        return self.__network.place(self.__device, result)

    def __getitem__(self, key):
        """As in NumPy, but one number stays on its device, as an array without axes."""
        return DeviceArray(self.__network, self.__device, self.__values[_index(key)])

    def __setitem__(self, key, value):
        check_one_device(self, key, value)
        if isinstance(key, OnDevice):
            if (
                key.dtype != bool or numpy.size(read(value)) != 1
            ):  # how many is a secret
                raise TypeError(
                    "x[mask] = y takes a mask such as x < 0, and one number"
                )
        self.__values[_index(read(key))] = read(value)

    def copy(self):
        return self.__network.place(self.__device, self.__values)


def _index(key):
    """The key with an ellipsis, so that NumPy returns a view and no number."""
    if isinstance(key, slice) and key == slice(None):
        return ...  # of an array without axes, too
    key = key if isinstance(key, tuple) else (key,)
    return key if any(part is ... for part in key) else (*key, ...)


def read(value):
    """The numbers of a device's array, for those who check; else the value itself."""
    return value._DeviceArray__values if isinstance(value, DeviceArray) else value


def check_one_device(*values):
    """Raise ValueError if arrays of several devices meet."""
    devices = {value.device for value in values if isinstance(value, OnDevice)}
    if len(devices) > 1:
        a, b, *_ = sorted(devices)
        raise ValueError(f"devices {a} and {b} do not share memory: use exchange")
