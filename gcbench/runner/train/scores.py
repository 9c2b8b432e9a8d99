"""Losses and test scores of the three kinds of task.

All processes compute scores together; their number does not change them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.runner.control import Control
from gcbench.runner.data import Data, Task
from gcbench.runner.data.augment import tta_views

if TYPE_CHECKING:
    from gcbench.runner.train.replica import Replica


def loss_of(task: Task, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean loss over the batch (and over the tokens of a window)."""
    if task == "regression":
        return F.mse_loss(outputs.float().view_as(targets), targets)
    return F.cross_entropy(
        outputs.flatten(0, -2).float(), targets.flatten(), label_smoothing=label_smoothing
    )


COLUMNS = 5  # number of values that `scores_of` returns for a batch
MANY_CLASSES = 100  # from this number on there is a top-5 accuracy too, as for ImageNet


def scores_of(task: Task, outputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Return what a batch adds to the test scores, as scalars.

    These are the sum of losses, the number of targets, how many were predicted correctly, how
    many were among the five likeliest classes, and the exponential of the mean loss.
    """
    loss = loss_of(task, outputs, targets).double()
    right = among_five = loss.new_zeros(())
    if task == "classification":
        right = (outputs.argmax(-1) == targets).sum().double()
        if outputs.shape[-1] >= MANY_CLASSES:
            among_five = (outputs.topk(5, dim=-1).indices == targets.unsqueeze(-1)).sum().double()
    count = loss.new_tensor(targets.numel())
    return [loss * count, count, right, among_five, loss.exp()]


def summary_of(task: Task, batches: Tensor, classes: int) -> dict[str, float]:
    """Return the test scores of `batches` `[number of batches, COLUMNS]`.

    Accuracies are in percent. Perplexity is exp of the mean loss per word;
    `perplexity_of_batches`, the mean over batches of exp(loss), is what the PowerSGD paper's code
    prints.
    """
    loss_sum, count, right, among_five, exponentials = batches.sum(0).tolist()
    loss = loss_sum / count
    if task == "classification":
        top5 = {"top5_accuracy": 100 * among_five / count} if classes >= MANY_CLASSES else {}
        return {"accuracy": 100 * right / count, **top5, "loss": loss}
    if task == "regression":
        return {"loss": loss}
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return {
        "perplexity": perplexity,
        "perplexity_of_batches": exponentials / len(batches),
        "loss": loss,
    }


def evaluate(
    replica: Replica,
    data: Data,
    control: Control,
    share: tuple[int, int],
    batch_size: int,
    augmented: bool = False,
) -> dict[str, float]:
    """Return the test scores, computed by all processes together.

    `share` is (process, processes): each process evaluates every `processes`-th batch, except that
    all of them read the whole text if the model carries state from batch to batch. If `augmented`,
    outputs are averaged over several views of each image.
    """
    control.broadcast(list(replica.model.buffers()))  # the running statistics of worker 0
    replica.begin_evaluation()
    process, processes = (0, 1) if replica.recurrent else share
    count = data.test_batches(batch_size)
    scores = torch.zeros(count, COLUMNS, dtype=torch.float64, device=replica.device)
    carry = None
    for i in range(process, count, processes):
        inputs, targets = data.test_batch(i, batch_size)
        if augmented:
            outputs = torch.stack(
                [weight * replica.evaluate(view, None)[0] for weight, view in tta_views(inputs)]
            ).sum(0)
        else:
            outputs, carry = replica.evaluate(inputs, carry)
        scores[i] = torch.stack(scores_of(data.task, outputs, targets))
    return summary_of(
        data.task, control.sum(scores) if processes > 1 else scores, data.outputs
    ) | _distance(replica, data)


def _distance(replica: Replica, data: Data) -> dict[str, float]:
    """Return `distance`, the 2-norm ||w - w*||, where the weights w* behind the targets are known.

    Return an empty dictionary unless the model has a single parameter, of the shape of w*.
    """
    optimum, parameters = getattr(data, "optimum", None), list(replica.parameters.values())
    if optimum is None or [p.shape for p in parameters] != [optimum.shape]:
        return {}
    return {"distance": float((parameters[0].detach() - optimum).norm())}
