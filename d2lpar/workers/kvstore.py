"""MXNet's distributed kvstore, without its race at the start and able to compress."""

from __future__ import annotations

import ctypes

from d2lpar._mxnet import mx


class DistributedKVStore(mx.kvstore.KVStore):
    """The kvstore "dist_sync" or "dist_async" of a worker; made once all are there."""

    def __init__(self, name: str) -> None:
        handle, create = mx.base.KVStoreHandle(), mx.base._LIB.MXKVStoreCreate
        mx.base.check_call(create(mx.base.c_str(name), ctypes.byref(handle)))
        super().__init__(handle)
        self.compresses = False

    def broadcast(self, key, value, out, priority: int = 0) -> None:
        """Give every worker the value of worker 0, and wait until it is there.

        MXNet orders a push after the last pull of the same key, except for the first
        one: a gradient may be summed before a slow worker has pulled the parameter,
        which would then receive the sum in its place.
        """
        super().broadcast(key, value, out, priority)
        for array in out if isinstance(out, (list, tuple)) else [out]:
            array.wait_to_read()

    def set_gradient_compression(self, compression_params: dict) -> None:
        """Compress what is pushed from now on."""
        super().set_gradient_compression(compression_params)
        self.compresses = True

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """Sum the values of all workers; in two calls where one refuses to compress."""
        if not self.compresses:
            super().pushpull(key, value, out, priority)
            return
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def close(self) -> None:
        """Wait for the other workers, and tell the servers that this one is done."""
        handle, self.handle = self.handle, None
        mx.base.check_call(mx.base._LIB.MXKVStoreFree(handle))
