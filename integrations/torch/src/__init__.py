"""Frames as samples of PyTorch, each read on the node that holds it.

    d = zazen.open("/lustre/images")
    sampler = zazen.torch.LocalSampler(d, 32, seed=1)
    loader = DataLoader(zazen.torch.Dataset(d), batch_sampler=sampler)
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for batch in loader: ...

The batches of all ranks together are, as sets, those of PyTorch's ``DistributedSampler`` with the
same seed and ``drop_last=True``. Only which rank reads which sample of a batch differs. ``pip
install 'zazen[torch]'`` installs it.
"""

from zazen.torch.dataset import Dataset
from zazen.torch.sampler import LocalSampler

__all__ = ["Dataset", "LocalSampler"]
