"""d2l's concise training: a Trainer, whose step gets the global batch size."""

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


def step(params, X, y, num_devices, lr, steps=1, clip_norm=None):
    devices = contexts(num_devices)
    net, read = dense(params, devices)
    params = net.collect_params()
    trainer = gluon.Trainer(
        params, "sgd", {"learning_rate": lr}, kvstore="device", update_on_kvstore=False
    )
    for _ in range(steps):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
        for l in losses:
            l.backward()
        trainer.allreduce_grads()
        if clip_norm is not None:
            for device in devices:
                grads = [p.grad(device) for p in params.values()]
                clip(grads, clip_norm * len(X))
        trainer.update(len(X), ignore_stale_grad=True)
    return read()
