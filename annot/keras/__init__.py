"""What Keras has on every backend: paths, texts, epochs and batches, optimizer steps; nothing here needs TensorFlow."""
