"""Reader for the XPlane files of TensorFlow, JAX and XLA."""
