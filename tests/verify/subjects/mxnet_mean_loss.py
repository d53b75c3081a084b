"""The loss is a mean, and the Trainer divides by the batch again."""

from contexts import autograd, batch, contexts, dense, gluon, init, loss, split_batch


def step(params, X, y, num_devices, lr):
    devices = contexts(num_devices)
    net, read = dense(params, devices)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        losses = [loss(net(X_k), y_k).mean() for X_k, y_k in zip(X_shards, y_shards)]
    for l in losses:
        l.backward()
    trainer.step(len(X))
    return read()
