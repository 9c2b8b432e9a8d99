"""Test scores, which all processes compute together; their number does not change the scores."""

from __future__ import annotations

import torch

from gcbench.runner.control import Control
from gcbench.runner.data import Data
from gcbench.runner.data.augment import tta_views
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.tasks import COLUMNS, scores_of, summary_of


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
