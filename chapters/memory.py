# %% [markdown]
# # Running out of memory
#
# Seed: GPU data science, "memory", in Korean (002)
#
# What a training needs, known before it runs; what happens where that is more than
# there is; and what comes back afterwards. The seed filled a T4's 14.7 GB, read
# `CUDA_ERROR_INVALID_VALUE`, and had to leave Python to get its memory back:
#
#     python chapters/memory.py --devices auto
#     d2lpar run memory --preset book
#     d2lpar run gan --preset book --dry-run        (prints the estimate, too)

# %%
from functools import partial

from loky import ProcessPoolExecutor

from d2lpar import chapter, devices, gan, lenet
from d2lpar.memory import estimate
from d2lpar.memory.free import free_memory
from d2lpar.records.wording import byte_size

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **Before it runs.** Parameters, gradients and the optimiser's state are small here.
# What counts is every layer's output, of every image, kept until the backward pass has
# used it. It grows with the batch, and each device holds its shard's part.

# %%
print(estimate.report(lenet.WORKLOAD.layers, {"global_batch_size": 256}, two))

# %% [markdown]
# The GAN's batch of 10,000 faces is another matter, unless a device takes it a part at
# a time. On CPUs MXNet's temporary buffers add to it: there are `MXNET_CPU_TEMP_COPY`
# of them, each keeps the largest size it was ever asked for, and a process grows until
# all of them have it: "memory increases by itself", says the seed.

# %%
for micro_batch_size in (None, 500):
    settings = {"global_batch_size": 10_000, "micro_batch_size": micro_batch_size}
    need = estimate.estimate(gan.WORKLOAD.layers, settings, num_devices=2)
    print(f"by {micro_batch_size}: {byte_size(need.total)} in all")
print(need)

# %% [markdown]
# **Into the limit.** A process that may take 300 MiB more than it has stands for a
# small device. Batches of 2,000 images fail, and it says so in a line. Then it gives
# back what the failure holds, which is what an interactive session forgets: the error
# itself keeps the frames that failed, and their arrays. And it trains again.


# %%
def train_within(limit: int, batch_sizes: tuple) -> list[str]:
    from d2lpar import datasets, devices, lenet
    from d2lpar.memory import out_of_memory
    from d2lpar.memory.free import process_status
    from d2lpar.records.wording import byte_size

    sizes, one, said = {"n_train": 4_000, "n_test": 200}, devices.parse("cpu:1"), []
    data = datasets.load("synthetic", **sizes)
    run = partial(lenet.train, devices=one, data=data, num_epochs=1)
    list(run(global_batch_size=2_000))  # the temporary buffers take their size now
    out_of_memory.release(one)
    with out_of_memory.limited(limit):
        for size in batch_sizes:
            settings = {"global_batch_size": size}
            try:
                (epoch,) = run(**settings)
                line = f"trained, loss {epoch.train_loss:.3f}"
            except Exception as error:
                layers = lenet.WORKLOAD.layers
                line = out_of_memory.explain(error, layers, settings, one, sizes)
                if line is None:
                    raise
            out_of_memory.release(one)
            resident = byte_size(process_status("VmRSS"))
            said.append(f"{size}: {line}\n  resident afterwards: {resident}")
    return said


environment = {"MXNET_CPU_TEMP_COPY": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
with ProcessPoolExecutor(1, env=environment) as executor:
    task = partial(train_within, 300 * 2**20, (2_000, 500, 2_000, 500))
    print("\n".join(executor.submit(task).result()))

# %% [markdown]
# **What a GPU adds.** Its memory is its own, and smaller; nothing is swapped. MXNet
# keeps freed pieces in a pool there, so that others see them taken until
# `mx.gpu(0).empty_cache()`; CUDA's context and cuDNN's workspaces come on top of the
# estimate. `d2lpar run` measures in a process of its own, so all of it comes back.
#
# **The devices of a run**: what is free on those that the flags name.


# %%
def show_free(chosen: list, **flags) -> None:
    for device, size in zip(chosen, free_memory(chosen)):
        print(f"free on {device}: {byte_size(size)}")


if __name__ == "__main__":
    chapter.show("memory", show_free)
