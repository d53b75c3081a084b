# %% [markdown]
# # Homework: data parallelism in four functions
#
# Write the four functions of chapter 1, `multiple_gpus`, without looking at it. Your
# code goes in place of each `raise NotImplementedError`. Test what you have, in this
# folder or by a notebook's cells, as often as you like:
#
#     python -m pytest test_homework.py
#
# The tests compare values with NumPy's, on batches that cannot be split evenly. None of
# them looks at a clock, and none needs a GPU: `mx.cpu(0)` and `mx.cpu(1)` are devices.

# %%
from d2lpar import autograd, gluon, mx, np


# %%
def get_params(params, device):
    """A copy of the arrays `params` on `device`, in a list, ready for gradients.

    An array is copied even if it is on `device` already, and keeps its dtype.
    """
    raise NotImplementedError("write get_params")


# %%
def allreduce(data):
    """Replace the numbers in each array of the list `data` by the sum of all arrays.

    ``data[k]`` is on device k and stays there: change the arrays, not the list.
    """
    raise NotImplementedError("write allreduce")


# %%
def split_batch(X, y, devices):
    """Split the n rows of `X` and `y` over N devices, in order; n >= N.

    Returns two lists, of N shards of X and of N shards of y, each on its device. Their
    lengths differ by at most one, and the first ones are the longer ones.
    """
    raise NotImplementedError("write split_batch")


# %%
def train_batch(X, y, device_params, devices, lr, net, loss):
    """One step of minibatch SGD on the batch (X, y), by your functions from above.

    ``device_params[k]`` is the replica on ``devices[k]``. ``net(X, params)`` predicts,
    ``loss(y_hat, y)`` has one value per row. The step of every replica is
    ``p -= lr / n * gradient``: the gradient is summed over all n rows of the batch.
    """
    raise NotImplementedError("write train_batch")
