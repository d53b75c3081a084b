"""The CryptoPunks notebook's GAN in PyTorch, on our faces: seconds per full step.

    pip install 'd2lpar[peers]'
    python peers/gan_pytorch.py --threads 2 --batch-size 1000 --steps 10

Networks, losses, Adam and the order of the two updates are the notebook's; it trains on
all 10,000 faces at once (`--batch-size 10000`). With `--check FILE` (an .npz of our
first steps) it first takes those steps from the same parameters; where a loss differs
it prints {"error": ...} and exits with status 2. Prints a JSON line per step, the first
one included.
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


def step(x_real, embedding, generator, discriminator, optimizerD, optimizerG):
    """One epoch of the notebook's loop; the two losses."""
    n = len(x_real)
    loss_function = nn.BCELoss()
    y = torch.concat((torch.ones(n), torch.zeros(n)))
    y_fake = torch.ones((n, 1))
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
    args = job.parse(parser)
    torch.set_num_threads(args.threads)
    if args.check:
        check(args.check)
    torch.manual_seed(args.seed)

    x_real = torch.tensor(punks.load().X, dtype=torch.float32) / 255
    generator, discriminator = create_generator(), create_discriminator()
    optimizerD = optim.Adam(discriminator.parameters(), lr=1e-4)
    optimizerG = optim.Adam(generator.parameters(), lr=1e-4)
    for number in range(args.steps):
        start = time.perf_counter()
        index = torch.randint(len(x_real), (args.batch_size,))
        z = torch.randn([args.batch_size, 16, 3, 3])
        errors = step(
            x_real[index], z, generator, discriminator, optimizerD, optimizerG
        )
        d_loss, g_loss = (error.item() for error in errors)
        seconds = time.perf_counter() - start
        line = {"step": number + 1, "seconds": seconds, "d_loss": d_loss}
        print(json.dumps({**line, "g_loss": g_loss}), flush=True)


if __name__ == "__main__":
    main()
