"""Metrics of torchmetrics through `run.evaluate`, compared with its functions over the whole data set.

On three ranks some have no sample in the last batch of two or four, and two have no sample of a set of one.
"""

import torch
from torch.utils.data import TensorDataset
from torchmetrics import CatMetric, MetricCollection, classification
from torchmetrics.functional.classification import multiclass_auroc, multiclass_f1_score

import dtj

SCORES = torch.tensor(
    [[3.0, 1, 0], [0, 2, 1], [1, 0, 2], [2, 1, 0], [0, 1, 3], [1, 3, 0], [0, 0, 1]]
).softmax(1)
LABELS = torch.tensor([0, 1, 1, 0, 2, 0, 2])
held_out = TensorDataset(SCORES, LABELS)
AUROC = float(multiclass_auroc(SCORES, LABELS, 3))

run = dtj.init()
f1 = classification.MulticlassF1Score(num_classes=3)  # its states are added up
auroc = classification.MulticlassAUROC(num_classes=3)  # its states are lists of all samples
both = MetricCollection({"f1": f1, "auroc": auroc})
for batch in (4, 2, 4):  # a metric is emptied before it is used again
    found = run.evaluate(lambda mb: (mb.x, mb.y), held_out, metric=both, batch=batch)
    alone = run.evaluate(
        lambda mb: {"preds": mb.x, "target": mb.y}, held_out, metric=auroc.clone(), batch=batch
    )
    expected = {"f1": float(multiclass_f1_score(SCORES, LABELS, 3)), "auroc": AUROC}
    torch.testing.assert_close([found, alone], [expected, AUROC])
few = TensorDataset(SCORES[:2], LABELS[:2])
found = run.evaluate(lambda mb: (mb.x, mb.y), few, metric=auroc)
torch.testing.assert_close(found, float(multiclass_auroc(SCORES[:2], LABELS[:2], 3)))
label = run.evaluate(lambda mb: mb.y, TensorDataset(SCORES[1:2], LABELS[1:2]), metric=CatMetric())
print("rank", run.rank, "found", label, flush=True)
