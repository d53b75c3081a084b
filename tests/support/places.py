"""The devices of a test: CPU contexts, or GPUs if there are enough."""

import pytest


def take(kind, n):
    """The first n devices of a kind, "cpu" or "gpu"; skips the test without them."""
    from d2lpar import devices
    from d2lpar.errors import DeviceError

    try:
        chosen = devices.parse(f"{kind}:{n}")
    except DeviceError as error:
        pytest.skip(str(error))
    devices.enable_peer_access(chosen)
    return chosen
