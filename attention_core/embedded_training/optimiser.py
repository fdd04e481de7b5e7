"""Muon for matrices, Adam for the rest, on float32 masters of bfloat16 weights."""

import torch
from torch import nn

# Coefficients of the quintic Newton-Schulz iteration: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Push the singular values of each matrix towards 1. matrices: (n, rows, columns) -> the same shape."""
    a, b, c = _NEWTON_SCHULZ
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class MuonAdam:
    """Muon (momentum 0.95, Nesterov, update scaled to 0.2 sqrt(larger side)) and Adam (0.9, 0.98).

    Matrices of the attention and feed-forward modules go to Muon, stacked by shape so that one call serves all of
    them; embeddings, layer norms and biases go to Adam. The masters are float32, the model holds rounded copies.
    """

    def __init__(self, model: nn.Module, muon_rate: float = 0.005, adam_rate: float = 2e-3, clip: float = 1.0) -> None:
        self.muon_rate, self.adam_rate, self.clip = muon_rate, adam_rate, clip
        self.parameters = dict(model.named_parameters())
        self.masters = {name: p.detach().float().clone() for name, p in self.parameters.items()}
        self.momentum = {name: torch.zeros_like(m) for name, m in self.masters.items()}
        self.groups: dict[tuple[int, ...], list[str]] = {}
        for name, p in self.parameters.items():
            if p.ndim == 2 and "embed" not in name and "shared" not in name:
                self.groups.setdefault(tuple(p.shape), []).append(name)
        grouped = {name for names in self.groups.values() for name in names}
        self.adam_names = [name for name in self.parameters if name not in grouped]
        self.second = {name: torch.zeros_like(self.masters[name]) for name in self.adam_names}
        self.steps = 0

    @torch.no_grad()
    def step(self, rate_factor: float) -> float:
        """Update all weights with both rates times rate_factor; returns the norm of the gradient before clipping."""
        self.steps += 1
        gradients = {
            name: torch.zeros_like(self.masters[name]) if p.grad is None else p.grad.float()
            for name, p in self.parameters.items()
        }
        norm = float(torch.stack([g.norm() for g in gradients.values()]).norm())
        shrink = min(1.0, self.clip / (norm + 1e-6))
        for shape, names in self.groups.items():
            for name in names:
                self.momentum[name].mul_(0.95).add_(gradients[name], alpha=shrink)
            updates = orthogonalise(
                torch.stack([gradients[name] * shrink + 0.95 * self.momentum[name] for name in names])
            )
            rate = self.muon_rate * rate_factor
            for name, update in zip(names, updates.float(), strict=True):
                self.masters[name].mul_(1 - 0.05 * rate).add_(update, alpha=-rate * 0.2 * max(shape) ** 0.5)
        correction1, correction2 = 1 - 0.9**self.steps, 1 - 0.98**self.steps
        for name in self.adam_names:
            gradient = gradients[name] * shrink
            self.momentum[name].lerp_(gradient, 0.1)
            self.second[name].mul_(0.98).addcmul_(gradient, gradient, value=0.02)
            scale = (self.second[name] / correction2).sqrt_().add_(1e-8)
            self.masters[name].addcdiv_(self.momentum[name], scale, value=-self.adam_rate * rate_factor / correction1)
        for name, p in self.parameters.items():
            p.copy_(self.masters[name])
            p.grad = None
        return norm

    def state_dict(self) -> dict:
        return {"masters": self.masters, "momentum": self.momentum, "second": self.second, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        for mine, saved in ((self.masters, "masters"), (self.momentum, "momentum"), (self.second, "second")):
            for name, tensor in mine.items():
                tensor.copy_(state[saved][name])
        self.steps = state["steps"]
        for name, p in self.parameters.items():
            p.copy_(self.masters[name])
