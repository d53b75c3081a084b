"""The CryptoPunks notebook's GAN in PyTorch, on our faces: seconds per full step.

    pip install -e '.[peers]'
    python benchmarks/peers/gan_pytorch.py --threads 2 --batch-size 1000 --steps 10
    python benchmarks/peers/gan_pytorch.py --width 64 --batch-size 64 --device cuda

Networks, losses, Adam and the order of the two updates are the notebook's; it trains on
all 10,000 faces at once (`--batch-size 10000`). With `--check FILE` (an .npz of our
first steps) it first takes those steps from the same parameters; where a loss differs
it prints {"error": ...} and exits with status 2. With `--width` the networks are the
wide ones with PyTorch's own spectral normalisation; a `--check` is for the notebook's.
Prints a JSON line for every `--at-once` steps in a row, the first ones included.
"""

import json
import time

import job
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

from d2lpar.datasets import punks


class create_generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(16, 128, 10, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(True),
            nn.ConvTranspose2d(128, 3, 4, 2, 1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.net(x)


class create_discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 12, 5)
        self.fc1 = nn.Linear(12 * 3 * 3, 32)
        self.fc2 = nn.Linear(32, 1)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = torch.sigmoid(self.fc2(x))
        return x


def wide_generator(width):
    """Noise (n, 100, 1, 1) to faces in [-1, 1]."""
    sizes = [100, 4 * width, 2 * width, width]
    layers = []
    for k, (before, after) in enumerate(zip(sizes, sizes[1:])):
        window = (4, 2, 1) if k else (3,)
        layers += [
            nn.ConvTranspose2d(before, after, *window, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def wide_discriminator(width):
    """Faces in [-1, 1] to scores (n, 1), with spectral normalisation."""
    sizes = [3, width, 2 * width, 4 * width]
    layers = []
    for before, after in zip(sizes, sizes[1:]):
        layers += [
            nn.utils.spectral_norm(nn.Conv2d(before, after, 4, 2, 1)),
            nn.LeakyReLU(0.2, True),
        ]
    last = nn.utils.spectral_norm(nn.Conv2d(4 * width, 1, 3))
    return nn.Sequential(*layers, last, nn.Flatten())


def step(
    x_real,
    embedding,
    generator,
    discriminator,
    optimizerD,
    optimizerG,
    loss_function=F.binary_cross_entropy,
):
    """One epoch of the notebook's loop; the two losses."""
    n, device = len(x_real), x_real.device
    y = torch.concat((torch.ones(n, device=device), torch.zeros(n, device=device)))
    y_fake = torch.ones((n, 1), device=device)
    x_fake = generator(embedding)

    discriminator.zero_grad()
    yhat_fake = discriminator(x_fake.detach())
    yhat_real = discriminator(x_real)
    yhat = torch.concat((yhat_real, yhat_fake)).reshape(-1)
    discriminator_error = loss_function(yhat, y)
    discriminator_error.backward(retain_graph=True)
    optimizerD.step()

    generator.zero_grad()
    yhat_fake = discriminator(x_fake)
    generator_error = loss_function(yhat_fake, y_fake)
    generator_error.backward(retain_graph=False)
    optimizerG.step()
    return discriminator_error, generator_error


def check(path):
    """Take the steps in `path`: X (steps, n, 3, 24, 24), z, d_losses and g_losses."""
    with np.load(path) as file:
        ours = {name: torch.tensor(file[name]) for name in file.files}
    nets = create_discriminator(), create_generator()
    with torch.no_grad():
        for letter, net in zip("DG", nets):
            state = net.state_dict()
            names = [n for n in state if not n.endswith("num_batches_tracked")]
            for k, name in enumerate(names):
                state[name].copy_(ours[f"{letter}.{k}"])
    optimizers = [optim.Adam(net.parameters(), lr=1e-4) for net in nets]
    steps = zip(*(ours[name] for name in ("X", "z", "d_losses", "g_losses")))
    for number, (X, z, *losses) in enumerate(steps, 1):
        errors = step(X, z, nets[1], nets[0], *optimizers)
        for name, error, loss in zip(("d_loss", "g_loss"), errors, losses):
            if not abs(error - loss) <= job.RELATIVE * abs(loss):
                job.refuse(f"step {number}: {name} is {error:.6f}, ours {loss:.6f}")


def main() -> None:
    parser = job.parser(__doc__)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, help="of the wide networks")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--at-once", type=int, default=1, help="steps in a row")
    args = job.parse(parser)
    torch.set_num_threads(args.threads)
    if args.check:
        check(args.check)
    torch.manual_seed(args.seed)

    x_real = torch.tensor(punks.load().X, dtype=torch.float32, device=args.device) / 255
    z_shape, loss, adam = [16, 3, 3], F.binary_cross_entropy, {"lr": 1e-4}
    if args.width:
        x_real, z_shape, loss = (
            2 * x_real - 1,
            [100, 1, 1],
            F.binary_cross_entropy_with_logits,
        )
        adam = {"lr": 1e-3, "betas": (0.0, 0.999)}
        nets = wide_generator(args.width), wide_discriminator(args.width)
    else:
        nets = create_generator(), create_discriminator()
    generator, discriminator = (net.to(args.device) for net in nets)
    optimizerD = optim.Adam(discriminator.parameters(), **adam)
    optimizerG = optim.Adam(generator.parameters(), **adam)
    for number in range(args.steps):
        start = time.perf_counter()
        for _ in range(args.at_once):
            index = torch.randint(len(x_real), (args.batch_size,), device=args.device)
            z = torch.randn([args.batch_size, *z_shape], device=args.device)
            nets = generator, discriminator, optimizerD, optimizerG
            errors = step(x_real[index], z, *nets, loss)
        d_loss, g_loss = (error.item() for error in errors)  # waits for the device
        seconds = (time.perf_counter() - start) / args.at_once
        line = {"step": number + 1, "seconds": seconds, "d_loss": d_loss}
        print(json.dumps({**line, "g_loss": g_loss}), flush=True)


if __name__ == "__main__":
    main()
