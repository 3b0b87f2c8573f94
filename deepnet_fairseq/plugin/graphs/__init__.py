"""`--cuda-graphs`: forward pass, loss, backward pass and the sum of gradients of a batch by one CUDA graph.

A model of 100 encoder and 100 decoder layers launches some 12,000 kernels a batch, and with the batches of the papers
the GPU waits for the launches. A CUDA graph replays them all by one call.

settings.py reads the flag and says why a training goes on without graphs. shapes.py chooses the padded shapes, each of
which has a graph. static_batch.py and gradients.py hold the tensors that stay in place, capture.py is all that calls
CUDA, lint.py finds what no graph can hold. step.py joins them into the step of a batch, and optimiser_copies.py has two
more graphs for the optimiser in half precision.
"""
