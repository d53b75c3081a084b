# %% [markdown]
# # Running out of memory
#
# Source: the GPU wiki, "memory"
#
# How much memory a training needs, what happens if there is less, and what is released
# afterwards. In the wiki only leaving Python releases the 14.7 GB of a full T4:
#
#     python chapters/memory.py --devices auto
#     d2lpar run memory --preset book
#     d2lpar run gan --preset book --dry-run        (prints an estimate)

# %%
from functools import partial

from loky import ProcessPoolExecutor

from d2lpar import chapter, devices, gan, lenet
from d2lpar.memory import estimate
from d2lpar.memory.free import free_memory
from d2lpar.records.wording import byte_size

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **Before the run.** Parameters, gradients and the optimiser's state are small here.
# Most memory holds the outputs of the layers, kept for every image until the backward
# pass has used them. They grow with the batch; each device holds those of its shard.

# %%
print(estimate.report(lenet.WORKLOAD.layers, {"global_batch_size": 256}, two))

# %% [markdown]
# The GAN's 10,000 faces need much more, unless a device takes a part at a time. On CPUs
# MXNet's `MXNET_CPU_TEMP_COPY` temporary buffers come on top: each keeps the largest
# size ever requested, so a process grows until all of them have reached it.

# %%
for micro_batch_size in (None, 500):
    settings = {"global_batch_size": 10_000, "micro_batch_size": micro_batch_size}
    need = estimate.estimate(gan.WORKLOAD.layers, settings, num_devices=2)
    print(f"by {micro_batch_size}: {byte_size(need.total)} in all")
print(need)

# %% [markdown]
# **At the limit.** A process that may allocate only 300 MiB more stands for a small
# device. Batches of 2,000 images fail with a one-line message. An error keeps the
# failed frames and their arrays alive; released here, they let training succeed again.


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
# **On a GPU** memory is separate and smaller, and nothing is swapped. MXNet keeps freed
# memory in a pool until `mx.gpu(0).empty_cache()`. CUDA's context and cuDNN's
# workspaces come on top of the estimate. When a process ends, all of it is released.
#
# **The devices of a run**: how much memory is free on those that the flags name.


# %%
def show_free(chosen: list, **flags) -> None:
    for device, size in zip(chosen, free_memory(chosen)):
        print(f"free on {device}: {byte_size(size)}")


if __name__ == "__main__":
    chapter.show("memory", show_free)
