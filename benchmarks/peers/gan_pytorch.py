"""The CryptoPunks notebook's GAN in PyTorch: networks, losses, order of updates.

`tests/gan` holds our steps to it.
"""

import torch
import torch.nn.functional as F
from torch import nn


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
