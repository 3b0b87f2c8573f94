"""`--cuda-graphs`: forward pass, loss, backward pass and the sum of gradients of a batch by one CUDA graph.

A model of 100 encoder and 100 decoder layers launches some 12,000 kernels a batch, and with the batches of the papers
the GPU waits for the launches. A CUDA graph replays them all by one call.

A graph is captured once: CUDA records the kernels that a function launches, with the addresses of their tensors. A
replay launches these kernels again, without Python, and reads what lies at the addresses by then. A captured graph thus
needs tensors of fixed shape at a fixed address.

settings.py reads the flag and says why a training goes on without graphs. shapes.py chooses the padded shapes, each of
which has a graph. static_batch.py and gradients.py hold the tensors at fixed addresses, capture.py captures and
replays, lint.py finds operations that cannot be captured, and kernels.py has faster kernels for a graph. step.py joins
them into the step of a batch, and optimiser_copies.py has two more graphs for the optimiser in half precision. With
several processes data_parallel.py takes the place of DDP.
"""
