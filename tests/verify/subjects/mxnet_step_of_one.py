"""The Trainer's step is told a batch size of 1, so the sum is not divided."""

from contexts import autograd, batch, contexts, dense, gluon, init, loss, split_batch


def step(params, X, y, num_devices, lr):
    devices = contexts(num_devices)
    net, read = dense(params, devices)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
    for l in losses:
        l.backward()
    trainer.step(batch_size=1)
    return read()
