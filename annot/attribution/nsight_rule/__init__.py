"""The statistics of ``nsys stats``, computed by the rules of Nsight Systems."""
