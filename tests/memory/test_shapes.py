"""Shapes of what a device keeps, against those that MXNet puts out."""

from d2lpar import gan, networks
from d2lpar._mxnet import np
from d2lpar.memory.shapes import gan_layers, lenet_layers


def outputs(blocks, x):
    """The shapes of what every block puts out, the activation of a layer apart."""
    shapes = [x.shape[1:]]
    for block in blocks:
        x = block(x)
        twice = getattr(block, "act", None) is not None
        shapes += [x.shape[1:]] * (1 + twice)
    return shapes


def test_lenets_shapes_are_those_that_mxnet_puts_out():
    net = networks.LeNet()
    net.initialize()
    layers = lenet_layers({})
    assert layers.parameters == networks.SHAPES
    assert [s for _, s, _ in layers.kept] == outputs(net, np.zeros((2, 1, 28, 28)))


def test_the_gans_shapes_are_those_that_mxnet_puts_out():
    D = gan.Discriminator(gan.networks.DEVICE_CHANNELS)
    G = gan.Generator()
    for net in (D, G):
        net.initialize()
    layers = gan_layers({})
    drawn = outputs(G, np.zeros((2, *gan.networks.Z_SHAPE)))
    judged = outputs(D, np.zeros((2, 3, 24, 24)))
    assert [s for _, s, times in layers.kept if times == 1] == drawn
    assert [s for _, s, times in layers.kept if times == 2] == judged
    learnt = [
        p.shape
        for net in (D, G)
        for p in net.collect_params().values()
        if p.grad_req != "null"
    ]
    assert sorted(layers.parameters) == sorted(learnt)
