"""What a training needs, what is free, and what happens when the memory runs out.

>>> from d2lpar.memory.estimate import estimate
>>> from d2lpar.memory.shapes import lenet_layers
>>> need = estimate(lenet_layers, {"global_batch_size": 256}, 2)
>>> need.batch, need.largest
(256, 'Conv2D 1, float32 (128, 20, 26, 26)')
"""
