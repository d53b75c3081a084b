"""A DistributedDataParallel communication hook: gradients travel in 16 bits.

    torchrun --nproc-per-node 2 teaching/frameworks/pytorch_hook.py

Prints the mean loss of each step, and at the end the bytes that a process has handed to
all-reduces. The buckets are small, so that LeNet has several of them.
"""

import start
from pytorch_ddp import lenet, num_devices, rank, train
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

num_bytes = 0


def in_16_bits(state, bucket):
    """Average a bucket over the processes in half precision.

    DDP calls this when the last gradient of the bucket is ready, and goes on with the
    backward pass while the bucket travels.
    """
    global num_bytes
    small = bucket.buffer().half() / num_devices
    num_bytes += small.nbytes
    work = distributed.all_reduce(small, async_op=True).get_future()
    return work.then(lambda done: bucket.buffer().copy_(done.value()[0]))


net = DistributedDataParallel(lenet(start.params()), bucket_cap_mb=0.1)
net.register_comm_hook(None, in_16_bits)
train(net)
if rank == 0:
    print(f"{num_bytes} bytes")
distributed.destroy_process_group()
