"""clip_global_norm of the gradients of all contexts, after they have been summed."""

from contexts import (
    autograd,
    batch,
    clip,
    contexts,
    dense,
    gluon,
    init,
    loss,
    split_batch,
)


def step(params, X, y, num_devices, lr, clip_norm=None):
    devices = contexts(num_devices)
    net, read = dense(params, devices)
    params = net.collect_params().values()
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": lr}, update_on_kvstore=False
    )
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
    for l in losses:
        l.backward()
    trainer.allreduce_grads()
    if clip_norm is not None:
        clip([g for p in params for g in p.list_grad()], clip_norm * len(X))
    trainer.update(len(X), ignore_stale_grad=True)
    return read()
