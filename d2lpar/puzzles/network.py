"""Devices that exist only in NumPy: they count what they send, receive and hold."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy

MAX_ROUNDS = 10_000  # an endless loop ends here


class Network:
    """N devices. Each sends one array per round at most, and receives one at most.

    On the `route` "ring" to the next device only, on "hub" to or from device 0.
    """

    SCORES = ("rounds", "arrays over the busiest link", "held")

    def __init__(self, num_devices: int, route: str = ""):
        self.rounds, self.route = 0, route
        self.messages: list[list[tuple[int, int, int]]] = []  # from, to, elements
        self.sent, self.received, self.held, self.peak = (
            [0] * num_devices for _ in range(4)
        )

    def place(self, k: int, values: numpy.ndarray) -> DeviceArray:
        """A copy of `values` that device k holds."""
        return DeviceArray(self, k, values.copy())

    def hold(self, k: int, values: numpy.ndarray) -> None:
        """Count an array's elements as device k's until nothing refers to it."""
        self.held[k] += values.size
        self.peak[k] = max(self.peak[k], self.held[k])
        weakref.finalize(values, self._release, k, values.size)

    def _release(self, k: int, size: int) -> None:
        self.held[k] -= size

    def exchange(self, messages: Sequence[tuple]) -> list[DeviceArray]:
        """One round: send each (array, to); the copies that arrive, in this order."""
        self.rounds += 1
        if self.rounds > MAX_ROUNDS:
            raise ValueError(f"more than {MAX_ROUNDS} rounds: does a loop not end?")
        self.messages.append([])
        senders, receivers = set(), set()
        for message in messages:
            if not isinstance(message, tuple) or len(message) != 2:
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


class DeviceArray(numpy.lib.mixins.NDArrayOperatorsMixin):
    """Numbers that only their device can compute with, and only `exchange` can copy."""

    __slots__ = ("__device", "__network", "__values")

    def __init__(self, network: Network, device: int, values: numpy.ndarray):
        self.__network, self.__device, self.__values = network, device, values
        if values.flags.owndata:  # a slice is held already
            network.hold(device, values)

    device = property(lambda self: self.__device)
    shape = property(lambda self: self.__values.shape)
    size = property(lambda self: self.__values.size)
    dtype = property(lambda self: self.__values.dtype)

    def __len__(self):
        return len(self.__values)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        if method not in ("__call__", "reduce"):
            raise TypeError(f"numpy.{ufunc.__name__}.{method}: use slices and + - * /")
        if not all(isinstance(array, DeviceArray) for array in out):
            self._read()
        _check_one_device(*inputs, *out)
        if out:
            options["out"] = tuple(map(read, out))
        result = getattr(ufunc, method)(*map(read, inputs), **options)
        if out:
            return out[0]
        return self.__network.place(self.__device, numpy.asarray(result))

    def __array_function__(self, function, types, args, kwargs):
        raise TypeError(f"numpy.{function.__name__}: use slices, + - * / and copy()")

    def __getitem__(self, key):
        """As in NumPy, but one number stays on its device, as an array without axes."""
        key = (*key, ...) if isinstance(key, tuple) else (key, ...)
        return DeviceArray(self.__network, self.__device, self.__values[key])

    def __setitem__(self, key, value):
        _check_one_device(self, value)
        self.__values[key] = read(value)

    def copy(self):
        return self.__network.place(self.__device, self.__values)

    def sum(self):
        return numpy.add.reduce(self)

    def _read(self, *_, **__):
        raise ValueError(f"device {self.__device}'s numbers are its own: use exchange")

    tolist = item = tobytes = _read
    __float__ = __int__ = __bool__ = __array__ = __reduce_ex__ = _read


def read(value):
    """The numbers of a device's array, for those who check; else the value itself."""
    return value._DeviceArray__values if isinstance(value, DeviceArray) else value


def _check_one_device(*values):
    devices = {value.device for value in values if isinstance(value, DeviceArray)}
    if len(devices) > 1:
        a, b, *_ = sorted(devices)
        raise ValueError(f"devices {a} and {b} do not share memory: use exchange")
