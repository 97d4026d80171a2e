"""Resource models: memory, disk and time of a training or a deployment."""
