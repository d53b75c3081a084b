# The public names; lazy_loader reads this file at run time.
from . import datasets as datasets
from . import devices as devices
from . import gan as gan
from . import kernels as kernels
from . import least_squares as least_squares
from . import lenet as lenet
from . import lenet_concise as lenet_concise
from . import lenet_workers as lenet_workers
from . import timing as timing
from ._mxnet import autograd as autograd
from ._mxnet import gluon as gluon
from ._mxnet import mx as mx
from ._mxnet import np as np
from ._mxnet import npx as npx
from .datasets import batches as batches
from .datasets import fashion_mnist as fashion_mnist
from .datasets import fashion_sample as fashion_sample
from .devices import cpus as cpus
from .devices import try_all_gpus as try_all_gpus
from .devices import try_gpu as try_gpu
from .lenet import evaluate_accuracy as evaluate_accuracy
from .lenet import init_lenet as init_lenet
from .lenet import train_batch as train_batch
from .parallel import allreduce as allreduce
from .parallel import get_params as get_params
from .parallel import sgd as sgd
from .parallel import split_batch as split_batch
from .step_checks import assert_equal_replicas as assert_equal_replicas

__version__: str
