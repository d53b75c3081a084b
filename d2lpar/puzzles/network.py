"""Devices that exist only in NumPy: they count what they send, receive and hold."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy

MAX_ROUNDS = 10_000  # an endless loop ends here


class Network:
    """N devices. Each sends one array per round at most, and receives one at most."""

    SCORES = ("rounds", "arrays over the busiest link", "held")

    def __init__(self, num_devices: int, is_ring: bool = False):
        self.rounds, self.is_ring = 0, is_ring
        self.messages: list[list[tuple[int, int, int]]] = []  # from, to, elements
        self.sent, self.received, self.held, self.peak = (
            [0] * num_devices for _ in range(4)
        )

    def place(self, k: int, values: numpy.ndarray) -> DeviceArray:
        """A copy of `values` that device k holds."""
        array = values.copy().view(DeviceArray)
        array.home = self, k
        self.hold(k, array)
        return array

    def hold(self, k: int, array: numpy.ndarray) -> None:
        """Count an array's elements as device k's until nothing refers to it."""
        self.held[k] += array.size
        self.peak[k] = max(self.peak[k], self.held[k])
        weakref.finalize(array, self._release, k, array.size)

    def _release(self, k: int, size: int) -> None:
        self.held[k] -= size

    def exchange(self, messages: Sequence[tuple]) -> list[DeviceArray]:
        """One round: send each (array, to); the copies that arrive, in this order."""
        self.rounds += 1
        if self.rounds > MAX_ROUNDS:
            raise ValueError(f"more than {MAX_ROUNDS} rounds: does a loop not end?")
        self.messages.append([])
        senders: set = set()
        receivers: set = set()
        for message in messages:
            if not isinstance(message, tuple) or len(message) != 2:
                raise ValueError("exchange takes a list of pairs (array, to)")
            array, to = message
            if getattr(array, "home", None) is None:
                raise ValueError(f"{array!r:.30} is on no device, so none can send it")
            sender = array.home[1]
            if to not in range(len(self.held)) or to == sender:
                raise ValueError(f"device {sender} cannot send to {to!r}")
            if self.is_ring and to != (sender + 1) % len(self.held):
                after = (sender + 1) % len(self.held)
                raise ValueError(f"device {sender} sends to {to}; in a ring to {after}")
            if sender in senders or to in receivers:
                what = f"{sender} sends" if sender in senders else f"{to} receives"
                raise ValueError(f"device {what} twice in one round")
            senders.add(sender)
            receivers.add(to)
            self.messages[-1].append((sender, to, array.size))
            self.sent[sender] += array.size
            self.received[to] += array.size
        return [self.place(to, numpy.asarray(array)) for array, to in messages]

    def scores(self) -> tuple[int, int, int]:
        """Rounds, elements over the busiest link, elements at most held at once."""
        return self.rounds, max(self.sent + self.received), max(self.peak)


class DeviceArray(numpy.ndarray):
    """An array that does not mix with another device's."""

    home: tuple[Network, int] | None

    def __array_finalize__(self, source):
        self.home = getattr(source, "home", None)
        if self.home and self.flags.owndata:
            self.home[0].hold(self.home[1], self)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        home = _one_home(*inputs, *out)
        if out:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return out[0] if out else home[0].place(home[1], numpy.asarray(result))

    def __array_function__(self, function, types, args, kwargs):
        raise TypeError(f"numpy.{function.__name__}: use slices, + - * / and copy()")

    def __getitem__(self, key):
        """As in NumPy, but one number stays on its device, as an array without axes."""
        return super().__getitem__(
            (*key, ...) if isinstance(key, tuple) else (key, ...)
        )

    def __setitem__(self, key, value):
        _one_home(self, value)
        super().__setitem__(key, value)

    def _read(self, *_, **__):
        raise ValueError(f"device {self.home[1]}'s numbers are its own: use exchange")

    tolist = item = view = tobytes = _read
    __float__ = __int__ = __bool__ = __array__ = _read


def _plain(value):
    return numpy.asarray(value) if isinstance(value, DeviceArray) else value


def _one_home(*values):
    homes = {value.home for value in values if getattr(value, "home", None)}
    if len(homes) > 1:
        a, b, *_ = sorted(k for _, k in homes)
        raise ValueError(f"devices {a} and {b} do not share memory: use exchange")
    return homes.pop() if homes else None
