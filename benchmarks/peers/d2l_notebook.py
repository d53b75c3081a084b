"""d2l's MXNet loop of "Training on Multiple GPUs", as the book prints it.

    pip install -e '.[cpu,book]'      # README.md: more on Python 3.12 and later
    python benchmarks/peers/d2l_notebook.py --num-epochs 3

The section's cells (book.py) with d2l's data loader, its four worker processes and the
default environment; nothing is tuned. Only reading the files is ours, because the
book's code downloads them. Prints a JSON line per epoch.
"""

import time

import job  # before mxnet
from book import get_params, lenet, train_batch
from d2l import mxnet as d2l  # after book, which prepares NumPy for it
from mxnet import gluon, np, npx


class FashionMNISTOnDisk(gluon.data.vision.FashionMNIST):
    """Gluon's data set, filled with the images that d2lpar found and verified."""

    images = None  # set by main

    def _get_data(self):
        X_train, y_train, X_test, y_test = self.images
        X, y = (X_train, y_train) if self._train else (X_test, y_test)
        self._data = np.array(X[..., None], dtype="uint8")
        self._label = y.astype("int32")


gluon.data.vision.FashionMNIST = FashionMNISTOnDisk

scale = 0.01
W1 = np.random.normal(scale=scale, size=(20, 1, 3, 3))
b1 = np.zeros(20)
W2 = np.random.normal(scale=scale, size=(50, 20, 5, 5))
b2 = np.zeros(50)
W3 = np.random.normal(scale=scale, size=(800, 128))
b3 = np.zeros(128)
W4 = np.random.normal(scale=scale, size=(128, 10))
b4 = np.zeros(10)
params = [W1, b1, W2, b2, W3, b3, W4, b4]


def train(params, num_gpus, batch_size, lr, num_epochs):
    train_iter, test_iter = d2l.load_data_fashion_mnist(batch_size)
    devices = [d2l.try_gpu(i) for i in range(num_gpus)]
    device_params = [get_params(params, d) for d in devices]
    for epoch in range(num_epochs):
        start = time.perf_counter()
        for X, y in train_iter:
            train_batch(X, y, device_params, devices, lr)
            npx.waitall()
        seconds = time.perf_counter() - start
        trained = (p.asnumpy() for p in device_params[0])
        job.refuse(job.divergence(epoch + 1, trained, lr))
        acc = d2l.evaluate_accuracy_gpu(
            lambda x: lenet(x, device_params[0]), test_iter, devices[0]
        )
        names = [str(device) for device in devices]
        samples = len(train_iter._dataset)
        job.print_epoch(epoch + 1, seconds, samples, float(acc), devices=names)


def check(first, num_gpus):
    """Take our first steps, image by image through the book's transforms."""
    devices = [d2l.try_gpu(i) for i in range(num_gpus)]
    start = [np.array(p) for p in first.check]
    device_params = [get_params(start, d) for d in devices]
    train_iter, _ = d2l.load_data_fashion_mnist(256)
    means = []
    for index in first.index:
        images, labels = zip(*[train_iter._dataset[int(i)] for i in index])
        X, y = np.stack(images), np.array(labels)
        losses = train_batch(X, y, device_params, devices, first.lr)
        means.append(sum(float(l.sum()) for l in losses) / len(index))
    job.refuse(job.disagreement(means, first))


def main() -> None:
    parser = job.lenet_parser(__doc__)
    parser.add_argument("--num-devices", type=int, default=1, help="GPUs")
    args = job.parse(parser)
    job.check_count(args.num_devices, d2l.num_gpus(), "MXNet")
    FashionMNISTOnDisk.images = job.data(args)
    start = params
    if args.check:
        first = job.first_steps(args.check)
        check(first, args.num_devices)
        start = [np.array(p) for p in first.params]
    train(start, args.num_devices, args.global_batch_size, args.lr, args.num_epochs)


if __name__ == "__main__":
    main()
