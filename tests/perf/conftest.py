"""One thread: these tensors are too small for more, and the machine is shared."""

import torch

torch.set_num_threads(1)
