"""What a training or a deployment needs: memory, disk, time."""
