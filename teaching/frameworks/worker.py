"""A worker of MXNet's parameter server: one gradient of a batch, summed over workers.

    python teaching/frameworks/worker.py FOLDER

Start it once per worker, beside a scheduler and a server, as Chapter 8 does by
:func:`d2lpar.workers.launch.launch`. Writes the sums of all workers' gradients
to FOLDER/RANK.npz.
"""

import sys

import numpy

from d2lpar import autograd, get_params, gluon, init_lenet, lenet, mx, np
from d2lpar.parallel import shares

store = mx.kv.create("dist_sync")
rng = numpy.random.default_rng(0)
X, y = rng.random((5, 1, 28, 28), numpy.float32), numpy.arange(5)
part = shares(len(y), store.num_workers)[store.rank]  # of the batch, for this worker
params = get_params(init_lenet(0.1, seed=0), mx.cpu(0))
with autograd.record():
    scores = lenet.lenet(np.array(X[part]), params)
    l = gluon.loss.SoftmaxCrossEntropyLoss()(scores, np.array(y[part]))
l.backward()
for key, p in enumerate(params):
    store.init(key, np.zeros_like(p.grad))
    store.pushpull(key, p.grad, out=p.grad)  # the sum takes the gradient's place
sums = [p.grad.asnumpy() for p in params]
numpy.savez(f"{sys.argv[1]}/{store.rank}.npz", *sums, images=len(y[part]))
