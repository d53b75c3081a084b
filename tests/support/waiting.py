"""What waits for devices in Python: forbid it, or hold an operation meanwhile."""

import threading
import uuid
from contextlib import contextmanager

from d2lpar._mxnet import mx

# Every way from an array to the host, and back, ends in one of these.
WAITS = (
    "MXNDArraySyncCopyToCPU", "MXNDArraySyncCopyFromCPU", "MXNDArrayWaitToRead",
    "MXNDArrayWaitToWrite", "MXNDArrayWaitAll", "MXNDArrayGetData",
)  # fmt: skip


class WaitedError(Exception):
    """Python has waited for a device."""


@contextmanager
def waiting_forbidden():
    """Raise WaitedError where MXNet copies from or to the host, or waits."""

    def forbid(name):
        def raising(*_):
            raise WaitedError(name)

        return raising

    library = mx.base._LIB
    before = {name: getattr(library, name) for name in WAITS}
    try:
        for name in WAITS:
            setattr(library, name, forbid(name))
        yield
    finally:
        for name, function in before.items():
            setattr(library, name, function)


class Held:
    """Operations that do not end before :meth:`release`; they give up after 5 s."""

    def __init__(self):
        self._may_end, self.given_up, self._name = threading.Event(), [], uuid.uuid4()
        held = self

        class Operation(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                if not held._may_end.wait(5):
                    held.given_up.append(1)
                self.assign(out_data[0], req[0], in_data[0])

        @mx.operator.register(str(self._name))
        class Property(mx.operator.CustomOpProp):
            def create_operator(self, ctx, shapes, dtypes):
                return Operation()

    def copy(self, array):
        """Return a copy of the array, which is not there before :meth:`release`."""
        copied = mx.nd.Custom(array.as_nd_ndarray(), op_type=str(self._name))
        return copied.as_np_ndarray()

    def release(self):
        """Let the operations end; return whether they were still waited for."""
        self._may_end.set()
        mx.npx.waitall()
        return not self.given_up
